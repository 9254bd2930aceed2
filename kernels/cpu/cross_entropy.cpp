#include "kernels/cpu/cross_entropy.h"

#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cross_entropy.cpp"
#include "kernels/cpu/simd_targets.h"
// After simd_targets.h:
#include <hwy/foreach_target.h>

#include "kernels/cpu/lanes-inl.h"
#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::HWY_NAMESPACE {

inline constexpr float kLowest = -std::numeric_limits<float>::infinity();

template <typename T>
void exponentials_rows(const float* logits, std::size_t tile_stride, std::size_t rows, std::size_t columns,
                       T* exponentials, std::size_t stride, float* row_max, float* row_sum,
                       std::size_t part_stride) {
  for (std::size_t r = 0; r < rows; ++r) {
    const float* row = logits + r * tile_stride;
    F32 most = set(kLowest);
    for (std::size_t c = 0; c < columns; c += kLanes) most = max(most, load_n(row + c, columns - c, kLowest));
    const float top = max_lanes(most);
    F32 sum = set(0.0f);
    for (std::size_t c = 0; c < columns; c += kLanes) {
      const F32 e = exp(load_n(row + c, columns - c, kLowest) - set(top));
      sum = sum + e;
      if (exponentials != nullptr) store_n(exponentials + r * stride + c, e, columns - c);
    }
    row_max[r * part_stride] = top;
    row_sum[r * part_stride] = sum_lanes(sum);
  }
}

void join_row(const float* row_max, const float* row_sum, std::size_t parts, JoinedRow* out) {
  F32 most = set(kLowest);
  for (std::size_t i = 0; i < parts; i += kLanes) most = max(most, load_n(row_max + i, parts - i, kLowest));
  out->largest = max_lanes(most);
  F32 sum = set(0.0f);
  for (std::size_t i = 0; i < parts; i += kLanes) {
    const F32 weight = exp(load_n(row_max + i, parts - i, kLowest) - set(out->largest));
    sum = fma(weight, load_n(row_sum + i, parts - i), sum);
  }
  out->sum = sum_lanes(sum);
}

void factors_row(const float* row_max, std::size_t parts, float lse, float scale, float* factor) {
  for (std::size_t i = 0; i < parts; i += kLanes) {
    store_n(factor + i, exp(load_n(row_max + i, parts - i) - set(lse)) * set(scale), parts - i);
  }
}

template <typename T>
void scale_rows_in_place(T* values, std::size_t stride, std::size_t rows, std::size_t columns,
                         const float* factor, std::size_t part_stride) {
  for (std::size_t r = 0; r < rows; ++r) {
    T* row = values + r * stride;
    const F32 f = set(factor[r * part_stride]);
    for (std::size_t c = 0; c < columns; c += kLanes) {
      store_n(row + c, load_n(static_cast<const T*>(row) + c, columns - c) * f, columns - c);
    }
  }
}

}  // namespace terrace::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {

void exponentials_tile(const float* logits, std::size_t tile_stride, std::size_t rows, std::size_t columns,
                       float* exponentials, std::size_t stride, float* row_max, float* row_sum,
                       std::size_t part_stride) {
  TERRACE_DISPATCH(exponentials_rows<float>)
  (logits, tile_stride, rows, columns, exponentials, stride, row_max, row_sum, part_stride);
}
void exponentials_tile(const float* logits, std::size_t tile_stride, std::size_t rows, std::size_t columns,
                       bf16* exponentials, std::size_t stride, float* row_max, float* row_sum,
                       std::size_t part_stride) {
  TERRACE_DISPATCH(exponentials_rows<bf16>)
  (logits, tile_stride, rows, columns, exponentials, stride, row_max, row_sum, part_stride);
}
void exponentials_tile(const float* logits, std::size_t tile_stride, std::size_t rows, std::size_t columns,
                       f16* exponentials, std::size_t stride, float* row_max, float* row_sum,
                       std::size_t part_stride) {
  TERRACE_DISPATCH(exponentials_rows<f16>)
  (logits, tile_stride, rows, columns, exponentials, stride, row_max, row_sum, part_stride);
}
JoinedRow join_parts(const float* row_max, const float* row_sum, std::size_t parts) {
  JoinedRow joined;
  TERRACE_DISPATCH(join_row)(row_max, row_sum, parts, &joined);
  return joined;
}
void part_factors(const float* row_max, std::size_t parts, float lse, float scale, float* factor) {
  TERRACE_DISPATCH(factors_row)(row_max, parts, lse, scale, factor);
}
void scale_tile(float* values, std::size_t stride, std::size_t rows, std::size_t columns, const float* factor,
                std::size_t part_stride) {
  TERRACE_DISPATCH(scale_rows_in_place<float>)(values, stride, rows, columns, factor, part_stride);
}
void scale_tile(bf16* values, std::size_t stride, std::size_t rows, std::size_t columns, const float* factor,
                std::size_t part_stride) {
  TERRACE_DISPATCH(scale_rows_in_place<bf16>)(values, stride, rows, columns, factor, part_stride);
}
void scale_tile(f16* values, std::size_t stride, std::size_t rows, std::size_t columns, const float* factor,
                std::size_t part_stride) {
  TERRACE_DISPATCH(scale_rows_in_place<f16>)(values, stride, rows, columns, factor, part_stride);
}

}  // namespace terrace
#endif
