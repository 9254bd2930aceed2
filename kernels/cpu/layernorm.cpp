#include "kernels/cpu/layernorm.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/layernorm.cpp"
#include "kernels/cpu/simd_targets.h"
// After simd_targets.h:
#include <hwy/foreach_target.h>

#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::HWY_NAMESPACE {

template <typename T>
HWY_INLINE F32 squares(const T* in, std::size_t n, F32 mean, F32 sum) {
  const F32 d = load_n(in, n) - mean;
  if (n >= kLanes) return fma(d, d, sum);
  float buffer[kLanes];
  store(buffer, d);
  const F32 kept = load_n(static_cast<const float*>(buffer), n);
  return fma(kept, kept, sum);
}

template <typename T>
void layernorm_rows(const T* in, std::size_t rows, std::size_t width, const T* gain, const T* bias, T* out,
                    float* mean_out, float* rstd_out) {
  for (std::size_t r = 0; r < rows; ++r, in += width, out += width) {
    F32 sum = set(0.0f);
    for (std::size_t c = 0; c < width; c += kLanes) sum = sum + load_n(in + c, width - c);
    const float mean_value = sum_lanes(sum) / static_cast<float>(width);
    const F32 mean = set(mean_value);
    F32 sum2 = set(0.0f);
    for (std::size_t c = 0; c < width; c += kLanes) sum2 = squares(in + c, width - c, mean, sum2);
    const float variance = sum_lanes(sum2) / static_cast<float>(width);
    const float rstd_value = 1.0f / std::sqrt(variance + kLayerNormEpsilon);
    const F32 rstd = set(rstd_value);
    for (std::size_t c = 0; c < width; c += kLanes) {
      const std::size_t n = width - c;
      const F32 normal = (load_n(in + c, n) - mean) * rstd;
      store_n(out + c, fma(normal, load_n(gain + c, n), load_n(bias + c, n)), n);
    }
    mean_out[r] = mean_value;
    rstd_out[r] = rstd_value;
  }
}

template <typename T>
void layernorm_backward_rows(const T* in, const T* dout, const T* residual, std::size_t rows,
                             std::size_t width, const T* gain, const float* mean_in, const float* rstd_in,
                             T* din) {
  for (std::size_t r = 0; r < rows; ++r) {
    const std::size_t row = r * width;
    const F32 mean = set(mean_in[r]);
    const F32 rstd = set(rstd_in[r]);
    F32 sum_h = set(0.0f);
    F32 sum_hn = set(0.0f);
    for (std::size_t c = 0; c < width; c += kLanes) {
      const std::size_t n = width - c;
      const F32 h = load_n(dout + row + c, n) * load_n(gain + c, n);
      const F32 normal = (load_n(in + row + c, n) - mean) * rstd;
      sum_h = sum_h + h;
      sum_hn = fma(h, normal, sum_hn);
    }
    const F32 mean_h = set(sum_lanes(sum_h) / static_cast<float>(width));
    const F32 mean_hn = set(sum_lanes(sum_hn) / static_cast<float>(width));
    for (std::size_t c = 0; c < width; c += kLanes) {
      const std::size_t n = width - c;
      const F32 h = load_n(dout + row + c, n) * load_n(gain + c, n);
      const F32 normal = (load_n(in + row + c, n) - mean) * rstd;
      F32 d = rstd * ((h - mean_h) - normal * mean_hn);
      if (residual != nullptr) d = load_n(residual + row + c, n) + d;
      store_n(din + row + c, d, n);
    }
  }
}

// `kBundles` bundles of columns side by side, so that whole cache lines are used.
template <int kBundles, typename T>
void columns_bundle(const T* in, const T* dout, std::size_t rows, std::size_t stride, std::size_t columns,
                    const float* mean_in, const float* rstd_in, float* dgain, float* dbias) {
  F32 gain_sum[kBundles];
  F32 bias_sum[kBundles];
  for (int b = 0; b < kBundles; ++b) gain_sum[b] = bias_sum[b] = set(0.0f);
  for (std::size_t begin = 0; begin < rows; begin += 64) {
    F32 gain_part[kBundles];
    F32 bias_part[kBundles];
    for (int b = 0; b < kBundles; ++b) gain_part[b] = bias_part[b] = set(0.0f);
    for (std::size_t r = begin; r < std::min(rows, begin + 64); ++r) {
      const F32 mean = set(mean_in[r]);
      const F32 rstd = set(rstd_in[r]);
      for (int b = 0; b < kBundles; ++b) {
        const std::size_t at = r * stride + static_cast<std::size_t>(b) * kLanes;
        const F32 d = load_n(dout + at, columns);
        gain_part[b] = fma(d, (load_n(in + at, columns) - mean) * rstd, gain_part[b]);
        bias_part[b] = bias_part[b] + d;
      }
    }
    for (int b = 0; b < kBundles; ++b) {
      gain_sum[b] = gain_sum[b] + gain_part[b];
      bias_sum[b] = bias_sum[b] + bias_part[b];
    }
  }
  for (int b = 0; b < kBundles; ++b) {
    store_n(dgain + static_cast<std::size_t>(b) * kLanes, gain_sum[b], columns);
    store_n(dbias + static_cast<std::size_t>(b) * kLanes, bias_sum[b], columns);
  }
}

template <typename T>
void layernorm_columns(const T* in, const T* dout, std::size_t rows, std::size_t stride, std::size_t columns,
                       const float* mean, const float* rstd, float* dgain, float* dbias) {
  std::size_t c = 0;
  for (; c + 4 * kLanes <= columns; c += 4 * kLanes) {
    columns_bundle<4>(in + c, dout + c, rows, stride, kLanes, mean, rstd, dgain + c, dbias + c);
  }
  for (; c < columns; c += kLanes) {
    columns_bundle<1>(in + c, dout + c, rows, stride, std::min(kLanes, columns - c), mean, rstd, dgain + c,
                      dbias + c);
  }
}

}  // namespace terrace::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {

void layernorm(const float* in, std::size_t rows, std::size_t width, const float* gain, const float* bias,
               float* out, float* mean, float* rstd) {
  TERRACE_DISPATCH(layernorm_rows<float>)(in, rows, width, gain, bias, out, mean, rstd);
}
void layernorm(const bf16* in, std::size_t rows, std::size_t width, const bf16* gain, const bf16* bias,
               bf16* out, float* mean, float* rstd) {
  TERRACE_DISPATCH(layernorm_rows<bf16>)(in, rows, width, gain, bias, out, mean, rstd);
}
void layernorm(const f16* in, std::size_t rows, std::size_t width, const f16* gain, const f16* bias, f16* out,
               float* mean, float* rstd) {
  TERRACE_DISPATCH(layernorm_rows<f16>)(in, rows, width, gain, bias, out, mean, rstd);
}
void layernorm_backward(const float* in, const float* dout, const float* residual, std::size_t rows,
                        std::size_t width, const float* gain, const float* mean, const float* rstd,
                        float* din) {
  TERRACE_DISPATCH(layernorm_backward_rows<float>)(in, dout, residual, rows, width, gain, mean, rstd, din);
}
void layernorm_backward(const bf16* in, const bf16* dout, const bf16* residual, std::size_t rows,
                        std::size_t width, const bf16* gain, const float* mean, const float* rstd,
                        bf16* din) {
  TERRACE_DISPATCH(layernorm_backward_rows<bf16>)(in, dout, residual, rows, width, gain, mean, rstd, din);
}
void layernorm_backward(const f16* in, const f16* dout, const f16* residual, std::size_t rows,
                        std::size_t width, const f16* gain, const float* mean, const float* rstd, f16* din) {
  TERRACE_DISPATCH(layernorm_backward_rows<f16>)(in, dout, residual, rows, width, gain, mean, rstd, din);
}
void layernorm_backward_columns(const float* in, const float* dout, std::size_t rows, std::size_t stride,
                                std::size_t columns, const float* mean, const float* rstd, float* dgain,
                                float* dbias) {
  TERRACE_DISPATCH(layernorm_columns<float>)(in, dout, rows, stride, columns, mean, rstd, dgain, dbias);
}
void layernorm_backward_columns(const bf16* in, const bf16* dout, std::size_t rows, std::size_t stride,
                                std::size_t columns, const float* mean, const float* rstd, float* dgain,
                                float* dbias) {
  TERRACE_DISPATCH(layernorm_columns<bf16>)(in, dout, rows, stride, columns, mean, rstd, dgain, dbias);
}
void layernorm_backward_columns(const f16* in, const f16* dout, std::size_t rows, std::size_t stride,
                                std::size_t columns, const float* mean, const float* rstd, float* dgain,
                                float* dbias) {
  TERRACE_DISPATCH(layernorm_columns<f16>)(in, dout, rows, stride, columns, mean, rstd, dgain, dbias);
}

}  // namespace terrace
#endif
