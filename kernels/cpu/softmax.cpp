#include "kernels/cpu/softmax.h"

#include <algorithm>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/softmax.cpp"
#include "kernels/cpu/simd_targets.h"
// After simd_targets.h:
#include <hwy/foreach_target.h>

#include "kernels/cpu/lanes-inl.h"
#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::HWY_NAMESPACE {

template <typename T>
void causal_softmax_rows(const float* scores, std::size_t stride, std::size_t rows, std::size_t seen,
                         std::size_t columns, float scale, T* weights, float* lse, float* inverse_sum) {
  const float lowest = -std::numeric_limits<float>::infinity();
  for (std::size_t r = 0; r < rows; ++r, scores += stride, weights += stride) {
    const std::size_t length = std::min(seen + r, columns);
    F32 most = set(lowest);
    for (std::size_t c = 0; c < length; c += kLanes) most = max(most, load_n(scores + c, length - c, lowest));
    const float top = max_lanes(most);
    F32 sum = set(0.0f);
    std::size_t c = 0;
    for (; c < length; c += kLanes) {
      const F32 e = exp((load_n(scores + c, length - c, lowest) - set(top)) * set(scale));
      sum = sum + e;
      store_n(weights + c, e, columns - c);
    }
    for (; c < columns; c += kLanes) store_n(weights + c, set(0.0f), columns - c);
    lse[r] = top * scale;
    inverse_sum[r] = sum_lanes(sum);
  }
  for (std::size_t r = 0; r < rows; r += kLanes) {
    const std::size_t n = rows - r;
    const F32 sum = load_n(inverse_sum + r, n, 1.0f);
    store_n(lse + r, load_n(lse + r, n) + log(sum), n);
    store_n(inverse_sum + r, set(1.0f) / sum, n);
  }
}

template <typename T>
void causal_softmax_backward_rows(const float* scores, const float* dprobabilities, std::size_t stride,
                                  std::size_t rows, std::size_t seen, std::size_t columns, float scale,
                                  const float* lse, const float* delta, T* probabilities, T* dscores) {
  const float lowest = -std::numeric_limits<float>::infinity();
  for (std::size_t r = 0; r < rows; ++r) {
    const std::size_t length = std::min(seen + r, columns);
    const F32 shift = set(-lse[r]);
    const F32 row_delta = set(delta[r]);
    std::size_t c = 0;
    for (; c < length; c += kLanes) {
      const F32 p = exp(fma(load_n(scores + c, length - c, lowest), set(scale), shift));
      const F32 d = load_n(dprobabilities + c, length - c) - row_delta;
      store_n(probabilities + c, p, columns - c);
      store_n(dscores + c, (p * d) * set(scale), columns - c);
    }
    for (; c < columns; c += kLanes) {
      store_n(probabilities + c, set(0.0f), columns - c);
      store_n(dscores + c, set(0.0f), columns - c);
    }
    scores += stride;
    dprobabilities += stride;
    probabilities += stride;
    dscores += stride;
  }
}

template <typename T>
void scale_tile_rows(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
                     const float* factor, T* out, std::size_t stride) {
  for (std::size_t r = 0; r < rows; ++r) {
    const F32 f = set(factor[r]);
    for (std::size_t c = 0; c < columns; c += kLanes) {
      store_n(out + r * stride + c, load_n(tile + r * tile_stride + c, columns - c) * f, columns - c);
    }
  }
}

template <typename T>
void row_dot_products(const T* a, const T* b, std::size_t stride, std::size_t rows, std::size_t columns,
                      float* out) {
  for (std::size_t r = 0; r < rows; ++r) {
    F32 sum = set(0.0f);
    for (std::size_t c = 0; c < columns; c += kLanes) {
      sum = fma(load_n(a + r * stride + c, columns - c), load_n(b + r * stride + c, columns - c), sum);
    }
    out[r] = sum_lanes(sum);
  }
}

}  // namespace terrace::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {

void causal_softmax(const float* scores, std::size_t stride, std::size_t rows, std::size_t seen,
                    std::size_t columns, float scale, float* weights, float* lse, float* inverse_sum) {
  TERRACE_DISPATCH(causal_softmax_rows<float>)
  (scores, stride, rows, seen, columns, scale, weights, lse, inverse_sum);
}
void causal_softmax(const float* scores, std::size_t stride, std::size_t rows, std::size_t seen,
                    std::size_t columns, float scale, bf16* weights, float* lse, float* inverse_sum) {
  TERRACE_DISPATCH(causal_softmax_rows<bf16>)
  (scores, stride, rows, seen, columns, scale, weights, lse, inverse_sum);
}
void causal_softmax(const float* scores, std::size_t stride, std::size_t rows, std::size_t seen,
                    std::size_t columns, float scale, f16* weights, float* lse, float* inverse_sum) {
  TERRACE_DISPATCH(causal_softmax_rows<f16>)
  (scores, stride, rows, seen, columns, scale, weights, lse, inverse_sum);
}
void causal_softmax_backward(const float* scores, const float* dprobabilities, std::size_t stride,
                             std::size_t rows, std::size_t seen, std::size_t columns, float scale,
                             const float* lse, const float* delta, float* probabilities, float* dscores) {
  TERRACE_DISPATCH(causal_softmax_backward_rows<float>)
  (scores, dprobabilities, stride, rows, seen, columns, scale, lse, delta, probabilities, dscores);
}
void causal_softmax_backward(const float* scores, const float* dprobabilities, std::size_t stride,
                             std::size_t rows, std::size_t seen, std::size_t columns, float scale,
                             const float* lse, const float* delta, bf16* probabilities, bf16* dscores) {
  TERRACE_DISPATCH(causal_softmax_backward_rows<bf16>)
  (scores, dprobabilities, stride, rows, seen, columns, scale, lse, delta, probabilities, dscores);
}
void causal_softmax_backward(const float* scores, const float* dprobabilities, std::size_t stride,
                             std::size_t rows, std::size_t seen, std::size_t columns, float scale,
                             const float* lse, const float* delta, f16* probabilities, f16* dscores) {
  TERRACE_DISPATCH(causal_softmax_backward_rows<f16>)
  (scores, dprobabilities, stride, rows, seen, columns, scale, lse, delta, probabilities, dscores);
}
void scale_rows(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
                const float* factor, float* out, std::size_t stride) {
  TERRACE_DISPATCH(scale_tile_rows<float>)(tile, tile_stride, rows, columns, factor, out, stride);
}
void scale_rows(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
                const float* factor, bf16* out, std::size_t stride) {
  TERRACE_DISPATCH(scale_tile_rows<bf16>)(tile, tile_stride, rows, columns, factor, out, stride);
}
void scale_rows(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
                const float* factor, f16* out, std::size_t stride) {
  TERRACE_DISPATCH(scale_tile_rows<f16>)(tile, tile_stride, rows, columns, factor, out, stride);
}
void row_dots(const float* a, const float* b, std::size_t stride, std::size_t rows, std::size_t columns,
              float* out) {
  TERRACE_DISPATCH(row_dot_products<float>)(a, b, stride, rows, columns, out);
}
void row_dots(const bf16* a, const bf16* b, std::size_t stride, std::size_t rows, std::size_t columns,
              float* out) {
  TERRACE_DISPATCH(row_dot_products<bf16>)(a, b, stride, rows, columns, out);
}
void row_dots(const f16* a, const f16* b, std::size_t stride, std::size_t rows, std::size_t columns,
              float* out) {
  TERRACE_DISPATCH(row_dot_products<f16>)(a, b, stride, rows, columns, out);
}

}  // namespace terrace
#endif
