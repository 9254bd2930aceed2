#include "kernels/cpu/tile.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/tile.cpp"
#include "kernels/cpu/simd_targets.h"
// After simd_targets.h:
#include <hwy/foreach_target.h>

#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::HWY_NAMESPACE {

// `bias` and `residual` may be null.
template <typename T>
void finish_tile(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
                 const T* bias, const T* residual, T* out, std::size_t stride) {
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; c += kLanes) {
      const std::size_t n = columns - c;
      F32 x = load_n(tile + r * tile_stride + c, n);
      if (bias != nullptr) x = x + load_n(bias + c, n);
      if (residual != nullptr) x = load_n(residual + r * stride + c, n) + x;
      store_n(out + r * stride + c, x, n);
    }
  }
}

// `kBundles` bundles of columns side by side, so that whole cache lines are used.
template <int kBundles, typename T>
void sum_bundle(const T* in, std::size_t rows, std::size_t stride, std::size_t columns, float* out) {
  F32 sum[kBundles];
  for (int b = 0; b < kBundles; ++b) sum[b] = set(0.0f);
  for (std::size_t begin = 0; begin < rows; begin += 64) {
    F32 part[kBundles];
    for (int b = 0; b < kBundles; ++b) part[b] = set(0.0f);
    for (std::size_t r = begin; r < std::min(rows, begin + 64); ++r) {
      for (int b = 0; b < kBundles; ++b) {
        part[b] = part[b] + load_n(in + r * stride + static_cast<std::size_t>(b) * kLanes, columns);
      }
    }
    for (int b = 0; b < kBundles; ++b) sum[b] = sum[b] + part[b];
  }
  for (int b = 0; b < kBundles; ++b) store_n(out + static_cast<std::size_t>(b) * kLanes, sum[b], columns);
}

template <typename T>
void sum_columns(const T* in, std::size_t rows, std::size_t stride, std::size_t columns, float* out) {
  std::size_t c = 0;
  for (; c + 4 * kLanes <= columns; c += 4 * kLanes) sum_bundle<4>(in + c, rows, stride, kLanes, out + c);
  for (; c < columns; c += kLanes)
    sum_bundle<1>(in + c, rows, stride, std::min(kLanes, columns - c), out + c);
}

}  // namespace terrace::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {

void store_tile(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns, float* out,
                std::size_t stride) {
  TERRACE_DISPATCH(finish_tile<float>)(tile, tile_stride, rows, columns, nullptr, nullptr, out, stride);
}
void store_tile(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns, bf16* out,
                std::size_t stride) {
  TERRACE_DISPATCH(finish_tile<bf16>)(tile, tile_stride, rows, columns, nullptr, nullptr, out, stride);
}
void store_tile(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns, f16* out,
                std::size_t stride) {
  TERRACE_DISPATCH(finish_tile<f16>)(tile, tile_stride, rows, columns, nullptr, nullptr, out, stride);
}
void bias_tile(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
               const float* bias, float* out, std::size_t stride) {
  TERRACE_DISPATCH(finish_tile<float>)(tile, tile_stride, rows, columns, bias, nullptr, out, stride);
}
void bias_tile(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
               const bf16* bias, bf16* out, std::size_t stride) {
  TERRACE_DISPATCH(finish_tile<bf16>)(tile, tile_stride, rows, columns, bias, nullptr, out, stride);
}
void bias_tile(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
               const f16* bias, f16* out, std::size_t stride) {
  TERRACE_DISPATCH(finish_tile<f16>)(tile, tile_stride, rows, columns, bias, nullptr, out, stride);
}
void bias_residual_tile(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
                        const float* bias, const float* residual, float* out, std::size_t stride) {
  TERRACE_DISPATCH(finish_tile<float>)(tile, tile_stride, rows, columns, bias, residual, out, stride);
}
void bias_residual_tile(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
                        const bf16* bias, const bf16* residual, bf16* out, std::size_t stride) {
  TERRACE_DISPATCH(finish_tile<bf16>)(tile, tile_stride, rows, columns, bias, residual, out, stride);
}
void bias_residual_tile(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
                        const f16* bias, const f16* residual, f16* out, std::size_t stride) {
  TERRACE_DISPATCH(finish_tile<f16>)(tile, tile_stride, rows, columns, bias, residual, out, stride);
}
void column_sums(const float* in, std::size_t rows, std::size_t stride, std::size_t columns, float* out) {
  TERRACE_DISPATCH(sum_columns<float>)(in, rows, stride, columns, out);
}
void column_sums(const bf16* in, std::size_t rows, std::size_t stride, std::size_t columns, float* out) {
  TERRACE_DISPATCH(sum_columns<bf16>)(in, rows, stride, columns, out);
}
void column_sums(const f16* in, std::size_t rows, std::size_t stride, std::size_t columns, float* out) {
  TERRACE_DISPATCH(sum_columns<f16>)(in, rows, stride, columns, out);
}

}  // namespace terrace
#endif
