// What finishes an fp32 tile of a matrix product (rows `tile_stride` apart) and writes it, rounded once, into
// a matrix whose rows are `stride` apart; and sums down columns. Thread-safe; no allocation.
#pragma once

#include <cstddef>

#include "src/base/dtype.h"

namespace terrace {

// out = tile.
void store_tile(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns, float* out,
                std::size_t stride);
void store_tile(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns, bf16* out,
                std::size_t stride);
void store_tile(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns, f16* out,
                std::size_t stride);

// out = tile + bias.
void bias_tile(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
               const float* bias, float* out, std::size_t stride);
void bias_tile(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
               const bf16* bias, bf16* out, std::size_t stride);
void bias_tile(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
               const f16* bias, f16* out, std::size_t stride);

// out = residual + (tile + bias). `out` may be `residual`.
void bias_residual_tile(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
                        const float* bias, const float* residual, float* out, std::size_t stride);
void bias_residual_tile(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
                        const bf16* bias, const bf16* residual, bf16* out, std::size_t stride);
void bias_residual_tile(const float* tile, std::size_t tile_stride, std::size_t rows, std::size_t columns,
                        const f16* bias, const f16* residual, f16* out, std::size_t stride);

// out[c] = sum over r of in[r, c], down the rows, 64 at a time.
void column_sums(const float* in, std::size_t rows, std::size_t stride, std::size_t columns, float* out);
void column_sums(const bf16* in, std::size_t rows, std::size_t stride, std::size_t columns, float* out);
void column_sums(const f16* in, std::size_t rows, std::size_t stride, std::size_t columns, float* out);

}  // namespace terrace
