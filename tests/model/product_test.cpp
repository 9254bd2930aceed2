#include "src/model/product.h"

#include <gtest/gtest.h>

#include "src/base/parallel_for.h"
#include "tests/model/values.h"

namespace terrace::testing {
namespace {

struct Case {
  std::int64_t rows, columns, depth;
  bool transpose_a, transpose_b;
};

// The operand as stored (transposed or not), its rows `stride` apart with other values between.
template <typename T>
struct Operand {
  Operand(std::uint64_t seed, std::int64_t rows, std::int64_t columns, bool transpose)
      : stride((transpose ? rows : columns) + 3),
        wide(random_doubles(seed, (transpose ? columns : rows) * stride)) {
    values = rounded<T>(wide);
    view = {values.data(), dtype_of<T>(), stride, transpose};
  }
  double at(std::int64_t i, std::int64_t j) const {
    return wide[view.transposed ? j * stride + i : i * stride + j];
  }
  std::int64_t stride;
  Doubles wide;
  std::vector<T> values;
  MatrixView view;
};

template <typename T>
void check_case(const Case& c) {
  const Operand<T> a(1, c.rows, c.depth, c.transpose_a);
  const Operand<T> b(2, c.depth, c.columns, c.transpose_b);
  Doubles want(static_cast<std::size_t>(c.rows * c.columns));
  for (std::int64_t i = 0; i < c.rows; ++i) {
    for (std::int64_t k = 0; k < c.depth; ++k) {
      const double left = a.at(i, k);
      for (std::int64_t j = 0; j < c.columns; ++j) want[i * c.columns + j] += left * b.at(k, j);
    }
  }
  WorkerPool pool({.scratch_bytes = kTileBytes});
  std::vector<float> out(want.size(), NAN);
  product(pool, c.rows, c.columns, c.depth, a.view, b.view, [&](const ProductTile& tile) {
    for (std::int64_t i = 0; i < tile.rows; ++i) {
      for (std::int64_t j = 0; j < tile.columns; ++j) {
        out[(tile.row + i) * c.columns + tile.column + j] = tile.values[i * tile.stride + j];
      }
    }
  });
  EXPECT_LT(error(widened(out), want), 1e-6) << c.rows << " x " << c.columns << " x " << c.depth;
  if (c.depth == 0) return;
  std::vector<float> stored(want.size(), NAN);
  product_to(pool, c.rows, c.columns, c.depth, a.view, b.view, stored.data(), c.columns, false);
  // Widened operands are dense: with AVX-512 oneDNN then chooses its kernel by the output's stride, which is
  // another one here.
  if constexpr (!std::is_same_v<T, f16>) {
    EXPECT_TRUE(same_bits(stored, out));
  } else {
    EXPECT_LT(error(widened(stored), want), 1e-6);
  }
  product_to(pool, c.rows, c.columns, c.depth, a.view, b.view, stored.data(), c.columns, true);
  for (double& x : want) x *= 2;
  EXPECT_LT(error(widened(stored), want), 1e-6);
}

TEST(Product, MatchesDoublePrecision) {
  std::vector<Case> cases;
  for (const bool a : {false, true}) {
    for (const bool b : {false, true}) {
      for (const std::int64_t rows : {1, 7, 257}) {
        for (const std::int64_t columns : {1, 24, 385}) cases.push_back({rows, columns, 33, a, b});
      }
      cases.push_back({3, 5, 2 * kTileDepth + 1, a, b});
      cases.push_back({kTileRows, kTileColumns, 1, a, b});
      cases.push_back({3, 5, 0, a, b});
    }
  }
  for (const Case& c : cases) {
    check_case<float>(c);
    check_case<bf16>(c);
    check_case<f16>(c);
  }
}

TEST(Product, TilesAreSharedOut) {
  EXPECT_EQ(tile_shape(1024, 3072).rows, kTileRows);
  EXPECT_EQ(tile_shape(1024, 3072).columns, kTileColumns);
  EXPECT_EQ(tile_shape(1, 1).rows, kTileRows / 4);
  EXPECT_EQ(tile_shape(1, 1).columns, kTileColumns / 4);
  for (std::int64_t rows = 1; rows < 3000; rows += 61) {
    for (std::int64_t columns = 1; columns < 20000; columns += 97) {
      const TileShape tile = tile_shape(rows, columns);
      const std::int64_t across = (columns + tile.columns - 1) / tile.columns;
      const std::int64_t largest = (columns + kTileColumns - 1) / kTileColumns;
      ASSERT_LE(across, std::max(largest, 2 * kWantedTiles)) << "the head's workspace counts on it";
    }
  }
}

// fp16 is widened, not computed in: the bits are those of the same values in fp32.
TEST(Product, Fp16GivesTheBitsOfFp32) {
  EXPECT_FALSE(products_take(DType::f16));
  EXPECT_TRUE(products_take(DType::f32));
  constexpr std::int64_t kRows = 70, kColumns = 90, kDepth = 50;
  const Operand<f16> a(1, kRows, kDepth, true);
  const Operand<f16> b(2, kDepth, kColumns, false);
  std::vector<float> wide_a, wide_b;  // as stored, dense
  for (std::int64_t k = 0; k < kDepth; ++k) {
    for (std::int64_t i = 0; i < kRows; ++i) wide_a.push_back(static_cast<float>(a.at(i, k)));
    for (std::int64_t j = 0; j < kColumns; ++j) wide_b.push_back(static_cast<float>(b.at(k, j)));
  }
  ProductWorker worker({.scratch_bytes = kTileBytes});
  std::vector<float> narrow(kRows * kColumns), wide(kRows * kColumns);
  worker.multiply(kRows, kColumns, kDepth, a.view, b.view, narrow.data(), kColumns);
  worker.multiply(kRows, kColumns, kDepth, {wide_a.data(), DType::f32, kRows, true},
                  {wide_b.data(), DType::f32, kColumns, false}, wide.data(), kColumns);
  EXPECT_TRUE(same_bits(narrow, wide));
}

TEST(Product, ThreadsDoNotShow) {
  const Operand<bf16> a(1, 600, 100, true);
  const Operand<bf16> b(2, 100, 800, false);
  std::vector<float> first;
  for (const int threads : {1, 2, 3}) {
    set_parallel_threads(threads);
    WorkerPool pool({.scratch_bytes = kTileBytes});
    std::vector<float> out(600 * 800);
    product_to(pool, 600, 800, 100, a.view, b.view, out.data(), 800, false);
    if (first.empty()) first = out;
    EXPECT_TRUE(same_bits(first, out)) << threads;
    EXPECT_GE(pool.bytes(), kTileBytes);
  }
  set_parallel_threads(0);
}

}  // namespace
}  // namespace terrace::testing
