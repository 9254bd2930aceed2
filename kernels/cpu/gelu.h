// GELU, tanh form (Hendrycks and Gimpel 2016): gelu(x) = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715
// x^3))). Both kernels finish an fp32 tile of a matrix product (rows `tile_stride` apart) and write into
// matrices whose rows are `stride` apart. Thread-safe; no allocation.
#pragma once

#include <cstddef>

#include "src/base/dtype.h"

namespace terrace {

// before = tile + bias, rounded to its type; after = gelu(before).
void bias_gelu(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
               const float* bias, float* before, float* after, std::size_t stride);
void bias_gelu(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
               const bf16* bias, bf16* before, bf16* after, std::size_t stride);
void bias_gelu(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
               const f16* bias, f16* before, f16* after, std::size_t stride);

// The tile is the gradient of gelu's output: dbefore = tile * gelu'(before). `after` is written again:
// gelu(before), the value that bias_gelu wrote. `dbefore` may be `before`.
void gelu_backward(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
                   const float* before, float* dbefore, float* after, std::size_t stride);
void gelu_backward(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
                   const bf16* before, bf16* dbefore, bf16* after, std::size_t stride);
void gelu_backward(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
                   const f16* before, f16* dbefore, f16* after, std::size_t stride);

}  // namespace terrace
