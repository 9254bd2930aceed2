#include "src/model/head_unit.h"

#include <algorithm>

#include "kernels/cpu/cast.h"
#include "kernels/cpu/cross_entropy.h"
#include "src/base/parallel_for.h"
#include "src/base/random.h"
#include "src/base/units.h"

namespace terrace {
namespace {

// One pass over rows [first, first + rows) of the head.
template <typename T>
struct HeadPass {
  const LayerContext& context;
  std::span<const std::int32_t> targets;
  std::int64_t first = 0;
  std::int64_t rows = 0;
  std::int64_t part_columns = 0;  // of a tile of logits
  std::int64_t parts = 0;         // tiles that the vocabulary is cut into
  T* exponentials = nullptr;      // [rows, vocabulary], null in evaluation; dlogits at the end
  float* part_max = nullptr;      // [rows, parts]
  float* part_sum = nullptr;
  float* target_logits = nullptr;  // [rows]
  double* losses = nullptr;        // [rows]
  WatchedRow watched = {};         // counted from the first row of the batch

  std::int32_t target(std::int64_t row) const { return targets[static_cast<std::size_t>(first + row)]; }

  void logits(const T* normal, const T* weight) const {
    const ModelSizes& s = context.sizes;
    product(context.workers, rows, s.vocabulary, s.width, matrix(normal, s.width),
            transposed(weight, s.width), [&](const ProductTile& tile) {
              const std::int64_t part = tile.row * parts + tile.column / part_columns;
              T* out = exponentials;
              if (out != nullptr) out += tile.row * s.vocabulary + tile.column;
              exponentials_tile(tile.values, tile.stride, tile.rows, tile.columns, out, s.vocabulary,
                                part_max + part, part_sum + part, parts);
              watch(tile);
              for (std::int64_t r = 0; r < tile.rows; ++r) {
                const std::int64_t column = target(tile.row + r) - tile.column;
                if (column < 0 || column >= tile.columns) continue;
                target_logits[tile.row + r] = tile.values[r * tile.stride + column];
              }
            });
  }

  void watch(const ProductTile& tile) const {
    const std::int64_t row = watched.row - first - tile.row;
    if (watched.row < 0 || row < 0 || row >= tile.rows) return;
    std::copy_n(tile.values + row * tile.stride, tile.columns, watched.logits + tile.column);
  }

  // The row's loss; then its gradient: softmax - 1 at the target, times `scale`; zeros for an ignored target.
  void finish_row(std::int64_t row, float scale) const {
    const ModelSizes& s = context.sizes;
    const JoinedRow joined = join_parts(part_max + row * parts, part_sum + row * parts, parts);
    const double lse = joined.largest + portable_log(joined.sum);
    const bool real = target(row) >= 0;
    losses[row] = real ? lse - target_logits[row] : 0;
    if (exponentials == nullptr) return;
    T* gradient = exponentials + row * s.vocabulary;
    if (!real) {
      std::fill(gradient, gradient + s.vocabulary, T{});
      return;
    }
    const auto shift = static_cast<float>(lse);
    float* factor = part_sum + row * parts;
    part_factors(part_max + row * parts, parts, shift, scale, factor);
    for (std::int64_t part = 0; part < parts; ++part) {
      const std::int64_t column = part * part_columns;
      scale_tile(gradient + column, s.vocabulary, 1, std::min(part_columns, s.vocabulary - column),
                 factor + part, 1);
    }
    float probability = 0;
    part_factors(target_logits + row, 1, shift, 1.0f, &probability);
    gradient[target(row)] = from_float<T>((probability - 1.0f) * scale);
  }

  void finish_rows(float scale) const {
    parallel_for(div_up(static_cast<std::uint64_t>(rows), kPassRows), [&](std::size_t piece) {
      const std::int64_t begin = static_cast<std::int64_t>(piece) * kPassRows;
      for (std::int64_t r = begin; r < std::min(rows, begin + kPassRows); ++r) finish_row(r, scale);
    });
  }
};

template <typename T>
T* part(std::byte* base, std::size_t offset) {
  return reinterpret_cast<T*>(base + offset);
}

template <typename T>
HeadPass<T> make_pass(const LayerContext& context, std::span<const std::int32_t> targets,
                      const HeadWorkspace& work, std::byte* workspace, std::int64_t first) {
  const ModelSizes& s = context.sizes;
  HeadPass<T> pass{context, targets};
  pass.first = first;
  pass.rows = std::min(kHeadRows, context.rows - first);
  pass.part_columns = tile_shape(pass.rows, s.vocabulary).columns;
  pass.parts = (s.vocabulary + pass.part_columns - 1) / pass.part_columns;
  pass.part_max = part<float>(workspace, work.part_max);
  pass.part_sum = part<float>(workspace, work.part_sum);
  pass.target_logits = part<float>(workspace, work.target_logits);
  pass.losses = part<double>(workspace, work.losses) + first;
  return pass;
}

double sum_in_order(const double* losses, std::int64_t rows) {
  double sum = 0;
  for (std::int64_t r = 0; r < rows; ++r) sum += losses[r];
  return sum;
}

}  // namespace

template <typename T>
double head_forward(const LayerContext& context, const T* params, const T* tied,
                    std::span<const std::int32_t> targets, const T* in, std::byte* workspace,
                    const WatchedRow& watched) {
  const ModelSizes& s = context.sizes;
  const HeadWorkspace work(s, false);
  const T* weight = tied != nullptr ? tied : params + 2 * s.width;
  T* normal = part<T>(workspace, work.normal);
  norm_forward(context, in, params, params + s.width, normal, part<float>(workspace, work.mean),
               part<float>(workspace, work.rstd));
  for (std::int64_t first = 0; first < context.rows; first += kHeadRows) {
    auto pass = make_pass<T>(context, targets, work, workspace, first);
    pass.watched = watched;
    pass.logits(normal + first * s.width, weight);
    pass.finish_rows(0);
  }
  return sum_in_order(part<double>(workspace, work.losses), context.rows);
}

template <typename T>
double head_backward(const LayerContext& context, const T* params, const T* tied,
                     std::span<const std::int32_t> targets, double scale, const T* in, T* din,
                     const ParameterGradient& grads, float* shared_grad, std::byte* workspace) {
  const ModelSizes& s = context.sizes;
  const HeadWorkspace work(s, true);
  const T* weight = tied != nullptr ? tied : params + 2 * s.width;
  const ParameterGradient weight_grad = grads.from(2 * s.width);
  T* normal = part<T>(workspace, work.normal);
  float* mean = part<float>(workspace, work.mean);
  float* rstd = part<float>(workspace, work.rstd);
  T* dnormal = part<T>(workspace, work.dnormal);
  T* dlogits = part<T>(workspace, work.dlogits);
  // Several passes add up in fp32: in place where the gradient is fp32, else apart, rounded once at the end.
  float* sums = shared_grad;
  if (sums == nullptr && weight_grad.dtype == DType::f32) sums = reinterpret_cast<float*>(weight_grad.data);
  const bool apart = sums == nullptr && s.max_rows > kHeadRows;
  if (apart) sums = part<float>(workspace, work.weight_sum);

  norm_forward(context, in, params, params + s.width, normal, mean, rstd);
  for (std::int64_t first = 0; first < context.rows; first += kHeadRows) {
    auto pass = make_pass<T>(context, targets, work, workspace, first);
    pass.exponentials = dlogits;
    pass.logits(normal + first * s.width, weight);
    pass.finish_rows(static_cast<float>(scale));
    const LayerContext rows{s, context.workers, pass.rows};
    product_rows(rows, s.width, s.vocabulary, dlogits, matrix(weight, s.width), dnormal + first * s.width);
    if (sums != nullptr) {
      product_to(context.workers, s.vocabulary, s.width, pass.rows, transposed(dlogits, s.vocabulary),
                 matrix(normal + first * s.width, s.width), sums, s.width, first > 0);
    } else {
      weight_gradient(rows, dlogits, s.vocabulary, normal, s.width, weight_grad);
    }
  }
  if (apart) {
    parallel_for(static_cast<std::size_t>(s.vocabulary), [&](std::size_t v) {
      const std::int64_t at = static_cast<std::int64_t>(v) * s.width;
      write_gradient(sums + at, s.width, weight_grad.from(at));
    });
  }
  norm_backward<T>(context, in, dnormal, nullptr, params, mean, rstd, din, grads, grads.from(s.width));
  return sum_in_order(part<double>(workspace, work.losses), context.rows);
}

#define TERRACE_HEAD(T)                                                                                 \
  template double head_forward(const LayerContext&, const T*, const T*, std::span<const std::int32_t>,  \
                               const T*, std::byte*, const WatchedRow&);                                \
  template double head_backward(const LayerContext&, const T*, const T*, std::span<const std::int32_t>, \
                                double, const T*, T*, const ParameterGradient&, float*, std::byte*);
TERRACE_HEAD(float)
TERRACE_HEAD(bf16)
TERRACE_HEAD(f16)
#undef TERRACE_HEAD

}  // namespace terrace
