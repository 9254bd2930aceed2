// The row kernels of causal attention. A tile of scores has `rows` queries and `columns` keys, rows `stride`
// apart; query r sees the first `seen + r` keys (at least one). fp32 inside; thread-safe; no allocation.
#pragma once

#include <cstddef>

#include "src/base/dtype.h"

namespace terrace {

// weights = exp((score - largest score of the row) * scale), 0 for keys not seen; not divided by their sum,
// whose inverse goes to `inverse_sum`. `lse` is the logarithm of the sum of exp(score * scale).
void causal_softmax(const float* scores, std::size_t stride, std::size_t rows, std::size_t seen,
                    std::size_t columns, float scale, float* weights, float* lse, float* inverse_sum);
void causal_softmax(const float* scores, std::size_t stride, std::size_t rows, std::size_t seen,
                    std::size_t columns, float scale, bf16* weights, float* lse, float* inverse_sum);
void causal_softmax(const float* scores, std::size_t stride, std::size_t rows, std::size_t seen,
                    std::size_t columns, float scale, f16* weights, float* lse, float* inverse_sum);

// probabilities = exp(score * scale - lse), dscores = probability * (dprobability - delta) * scale; both 0
// for keys not seen. `delta` is the row's sum of output * output gradient (Dao et al. 2022, appendix B).
// dscores and probabilities may not overlap the inputs.
void causal_softmax_backward(const float* scores, const float* dprobabilities, std::size_t stride,
                             std::size_t rows, std::size_t seen, std::size_t columns, float scale,
                             const float* lse, const float* delta, float* probabilities, float* dscores);
void causal_softmax_backward(const float* scores, const float* dprobabilities, std::size_t stride,
                             std::size_t rows, std::size_t seen, std::size_t columns, float scale,
                             const float* lse, const float* delta, bf16* probabilities, bf16* dscores);
void causal_softmax_backward(const float* scores, const float* dprobabilities, std::size_t stride,
                             std::size_t rows, std::size_t seen, std::size_t columns, float scale,
                             const float* lse, const float* delta, f16* probabilities, f16* dscores);

// out[r, c] = tile[r, c] * factor[r].
void scale_rows(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
                const float* factor, float* out, std::size_t stride);
void scale_rows(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
                const float* factor, bf16* out, std::size_t stride);
void scale_rows(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
                const float* factor, f16* out, std::size_t stride);

// out[r] = sum over c of a[r, c] * b[r, c].
void row_dots(const float* a, const float* b, std::size_t stride, std::size_t rows, std::size_t columns,
              float* out);
void row_dots(const bf16* a, const bf16* b, std::size_t stride, std::size_t rows, std::size_t columns,
              float* out);
void row_dots(const f16* a, const f16* b, std::size_t stride, std::size_t rows, std::size_t columns,
              float* out);

}  // namespace terrace
