#include "kernels/cpu/gelu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gelu.cpp"
#include "kernels/cpu/simd_targets.h"
// After simd_targets.h:
#include <hwy/foreach_target.h>

#include "kernels/cpu/lanes-inl.h"
#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::HWY_NAMESPACE {

inline constexpr float kRootTwoOverPi = 0.7978845608028654f;
inline constexpr float kCubic = 0.044715f;

HWY_INLINE F32 gelu_tanh(F32 x) {
  return tanh(x * fma(set(kRootTwoOverPi * kCubic), x * x, set(kRootTwoOverPi)));
}

HWY_INLINE F32 gelu_value(F32 x, F32 t) {
  const F32 half = set(0.5f) * x;
  return fma(half, t, half);
}

template <typename T>
void bias_gelu_tile(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
                    const T* bias, T* before, T* after, std::size_t stride) {
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; c += kLanes) {
      const std::size_t n = columns - c;
      const F32 x = round_to<T>(load_n(tile + r * tile_stride + c, n) + load_n(bias + c, n));
      store_n(before + r * stride + c, x, n);
      store_n(after + r * stride + c, gelu_value(x, gelu_tanh(x)), n);
    }
  }
}

template <typename T>
void gelu_backward_tile(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
                        const T* before, T* dbefore, T* after, std::size_t stride) {
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; c += kLanes) {
      const std::size_t n = columns - c;
      const F32 x = load_n(before + r * stride + c, n);
      const F32 t = gelu_tanh(x);
      const F32 slope = fma(set(3.0f * kRootTwoOverPi * kCubic), x * x, set(kRootTwoOverPi));
      // 0.5 (1 + t) + 0.5 x (1 - t^2) slope
      const F32 half = set(0.5f);
      const F32 derivative = fma((half * x) * fma(set(0.0f) - t, t, set(1.0f)), slope, fma(half, t, half));
      store_n(after + r * stride + c, gelu_value(x, t), n);
      store_n(dbefore + r * stride + c, load_n(tile + r * tile_stride + c, n) * derivative, n);
    }
  }
}

}  // namespace terrace::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {

void bias_gelu(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
               const float* bias, float* before, float* after, std::size_t stride) {
  TERRACE_DISPATCH(bias_gelu_tile<float>)(tile, tile_stride, rows, columns, bias, before, after, stride);
}
void bias_gelu(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
               const bf16* bias, bf16* before, bf16* after, std::size_t stride) {
  TERRACE_DISPATCH(bias_gelu_tile<bf16>)(tile, tile_stride, rows, columns, bias, before, after, stride);
}
void bias_gelu(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
               const f16* bias, f16* before, f16* after, std::size_t stride) {
  TERRACE_DISPATCH(bias_gelu_tile<f16>)(tile, tile_stride, rows, columns, bias, before, after, stride);
}
void gelu_backward(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
                   const float* before, float* dbefore, float* after, std::size_t stride) {
  TERRACE_DISPATCH(gelu_backward_tile<float>)
  (tile, tile_stride, rows, columns, before, dbefore, after, stride);
}
void gelu_backward(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
                   const bf16* before, bf16* dbefore, bf16* after, std::size_t stride) {
  TERRACE_DISPATCH(gelu_backward_tile<bf16>)
  (tile, tile_stride, rows, columns, before, dbefore, after, stride);
}
void gelu_backward(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
                   const f16* before, f16* dbefore, f16* after, std::size_t stride) {
  TERRACE_DISPATCH(gelu_backward_tile<f16>)
  (tile, tile_stride, rows, columns, before, dbefore, after, stride);
}

}  // namespace terrace
#endif
