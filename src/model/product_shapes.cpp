#include "src/model/product_shapes.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

namespace terrace {
namespace {

std::int64_t span_of(const MatrixView& view, std::int64_t rows, std::int64_t columns) {
  if (view.transposed) std::swap(rows, columns);
  return (rows - 1) * view.stride + columns;
}

// The sizes of the pieces that [0, total) is cut into: whole ones and the last.
std::vector<std::int64_t> piece_sizes(std::int64_t total, std::int64_t piece) {
  std::vector<std::int64_t> sizes;
  if (total >= piece) sizes.push_back(piece);
  if (total % piece > 0) sizes.push_back(total % piece);
  return sizes;
}

class Shapes {
 public:
  explicit Shapes(const ModelSizes& sizes) : s_(sizes) {}

  std::vector<ProductShape> take() { return std::move(shapes_); }

  MatrixView plain(std::int64_t stride) const { return {nullptr, s_.compute, stride, false}; }
  MatrixView transposed(std::int64_t stride) const { return {nullptr, s_.compute, stride, true}; }

  void add(std::int64_t rows, std::int64_t columns, std::int64_t depth, const MatrixView& a,
           const MatrixView& b, std::int64_t c_stride, bool accumulate = false) {
    if (rows <= 0 || columns <= 0 || depth <= 0) return;
    if (!known_
             .emplace(rows, columns, depth, a.stride, a.transposed, b.stride, b.transposed, c_stride,
                      accumulate)
             .second) {
      return;
    }
    shapes_.push_back({rows, columns, depth, a, b, c_stride, accumulate});
  }

  // The tiles of product() (`c_stride` 0: each in a worker's scratch) and product_to().
  void tiled(std::int64_t rows, std::int64_t columns, std::int64_t depth, const MatrixView& a,
             const MatrixView& b, std::int64_t c_stride = 0, bool accumulate = false) {
    const TileShape tile = tile_shape(rows, columns);
    for (const std::int64_t r : piece_sizes(rows, tile.rows)) {
      for (const std::int64_t c : piece_sizes(columns, tile.columns)) {
        add(r, c, depth, a, b, c_stride == 0 ? c : c_stride, accumulate);
      }
    }
  }

  // weight_gradient() over `rows` rows.
  void gradient(std::int64_t rows, std::int64_t columns_a, std::int64_t columns_b) {
    tiled(columns_a, columns_b, rows, transposed(columns_a), plain(columns_b),
          s_.grad == DType::f32 ? columns_b : 0);
  }

  void block() {
    const std::int64_t rows = s_.max_rows, width = s_.width, mlp = s_.mlp;
    for (const auto& [columns, depth] :
         {std::pair{3 * width, width}, {width, width}, {mlp, width}, {width, mlp}}) {
      tiled(rows, columns, depth, plain(depth), transposed(depth));
      tiled(rows, depth, columns, plain(columns), plain(depth));
      gradient(rows, columns, depth);
    }
  }

  void attention() {
    const std::int64_t qkv = 3 * s_.width, head = s_.head_width;
    for (std::int64_t first = 0; first < s_.context; first += kQueryRows) {
      const std::int64_t queries = std::min(kQueryRows, s_.context - first);
      const std::int64_t keys = first + queries;
      const bool last = keys == s_.context;
      add(queries, keys, head, plain(qkv), transposed(qkv), keys);
      add(queries, keys, head, plain(s_.width), transposed(qkv), keys);
      add(queries, head, keys, plain(keys), plain(qkv), head);
      add(keys, head, queries, transposed(keys), plain(s_.width), head, !last);
      add(keys, head, queries, transposed(keys), plain(qkv), head, !last);
    }
  }

  void head() {
    for (const std::int64_t rows : piece_sizes(s_.max_rows, kHeadRows)) {
      tiled(rows, s_.vocabulary, s_.width, plain(s_.width), transposed(s_.width));
      tiled(rows, s_.width, s_.vocabulary, plain(s_.vocabulary), plain(s_.width));
      const bool summed = s_.tied || s_.grad == DType::f32 || s_.max_rows > kHeadRows;
      if (!summed) gradient(rows, s_.vocabulary, s_.width);
      for (const bool accumulate : {false, true}) {
        if (summed && (!accumulate || s_.max_rows > kHeadRows)) {
          tiled(s_.vocabulary, s_.width, rows, transposed(s_.vocabulary), plain(s_.width), s_.width,
                accumulate);
        }
      }
    }
  }

 private:
  const ModelSizes& s_;
  std::set<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool, std::int64_t, bool,
                      std::int64_t, bool>>
      known_;
  std::vector<ProductShape> shapes_;
};

}  // namespace

std::int64_t ProductShape::a_span() const {
  return span_of(a, rows, depth);
}

std::int64_t ProductShape::b_span() const {
  return span_of(b, depth, columns);
}

std::vector<ProductShape> product_shapes(const ModelSizes& sizes) {
  Shapes shapes(sizes);
  shapes.block();
  shapes.attention();
  shapes.head();
  return shapes.take();
}

}  // namespace terrace
