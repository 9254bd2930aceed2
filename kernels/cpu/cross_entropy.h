// Softmax and cross entropy over a vocabulary that is cut into column tiles: each tile leaves exponentials
// and, a row, the largest logit and the sum; the parts are then joined. fp32 inside; thread-safe; no
// allocation.
#pragma once

#include <cstddef>

#include "src/base/dtype.h"

namespace terrace {

// For each row of an fp32 tile of logits: its largest logit to row_max[r * part_stride], the sum of
// exp(logit - largest) to row_sum[r * part_stride], and these exponentials to `exponentials` (rows `stride`
// apart) when that is not null.
void exponentials_tile(const float* logits, std::size_t tile_stride, std::size_t rows, std::size_t columns,
                       float* exponentials, std::size_t stride, float* row_max, float* row_sum,
                       std::size_t part_stride);
void exponentials_tile(const float* logits, std::size_t tile_stride, std::size_t rows, std::size_t columns,
                       bf16* exponentials, std::size_t stride, float* row_max, float* row_sum,
                       std::size_t part_stride);
void exponentials_tile(const float* logits, std::size_t tile_stride, std::size_t rows, std::size_t columns,
                       f16* exponentials, std::size_t stride, float* row_max, float* row_sum,
                       std::size_t part_stride);

// The largest logit of a row and the sum of exp(logit - largest), from its parts.
struct JoinedRow {
  float largest = 0;
  float sum = 0;
};
JoinedRow join_parts(const float* row_max, const float* row_sum, std::size_t parts);

// factor[i] = exp(row_max[i] - lse) * scale: what a part's exponentials are multiplied with. `factor` may be
// `row_sum`.
void part_factors(const float* row_max, std::size_t parts, float lse, float scale, float* factor);

// values[r, c] *= factor[r * part_stride], in place.
void scale_tile(float* values, std::size_t stride, std::size_t rows, std::size_t columns, const float* factor,
                std::size_t part_stride);
void scale_tile(bf16* values, std::size_t stride, std::size_t rows, std::size_t columns, const float* factor,
                std::size_t part_stride);
void scale_tile(f16* values, std::size_t stride, std::size_t rows, std::size_t columns, const float* factor,
                std::size_t part_stride);

}  // namespace terrace
