// Layer normalisation (Ba et al. 2016): y = (x - mean) / sqrt(variance + eps) * gain + bias over each row.
// Statistics in fp32, the variance about the mean. Rows are contiguous; thread-safe; no allocation.
#pragma once

#include <cstddef>

#include "src/base/dtype.h"

namespace terrace {

inline constexpr float kLayerNormEpsilon = 1e-5f;

// Normalises `rows` rows of `width` and writes each row's mean and 1 / sqrt(variance + eps). `out` may be
// `in`.
void layernorm(const float* in, std::size_t rows, std::size_t width, const float* gain, const float* bias,
               float* out, float* mean, float* rstd);
void layernorm(const bf16* in, std::size_t rows, std::size_t width, const bf16* gain, const bf16* bias,
               bf16* out, float* mean, float* rstd);
void layernorm(const f16* in, std::size_t rows, std::size_t width, const f16* gain, const f16* bias, f16* out,
               float* mean, float* rstd);

// The gradient of the input, added to `residual` when that is not null: with h = dout * gain and n the
// normalised row, din = residual + rstd * (h - mean(h) - n * mean(h * n)). `din` may be `dout` or `residual`.
void layernorm_backward(const float* in, const float* dout, const float* residual, std::size_t rows,
                        std::size_t width, const float* gain, const float* mean, const float* rstd,
                        float* din);
void layernorm_backward(const bf16* in, const bf16* dout, const bf16* residual, std::size_t rows,
                        std::size_t width, const bf16* gain, const float* mean, const float* rstd, bf16* din);
void layernorm_backward(const f16* in, const f16* dout, const f16* residual, std::size_t rows,
                        std::size_t width, const f16* gain, const float* mean, const float* rstd, f16* din);

// The gradients of gain and bias for `columns` columns, starting where `in` and `dout` point; rows are
// `stride` apart. Sums run down the rows, 64 at a time.
void layernorm_backward_columns(const float* in, const float* dout, std::size_t rows, std::size_t stride,
                                std::size_t columns, const float* mean, const float* rstd, float* dgain,
                                float* dbias);
void layernorm_backward_columns(const bf16* in, const bf16* dout, std::size_t rows, std::size_t stride,
                                std::size_t columns, const float* mean, const float* rstd, float* dgain,
                                float* dbias);
void layernorm_backward_columns(const f16* in, const f16* dout, std::size_t rows, std::size_t stride,
                                std::size_t columns, const float* mean, const float* rstd, float* dgain,
                                float* dbias);

}  // namespace terrace
