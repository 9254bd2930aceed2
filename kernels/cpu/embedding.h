// Rows of embedding tables: gather and add, and the sums of their gradients. Thread-safe; no allocation.
#pragma once

#include <cstddef>

#include "src/base/dtype.h"

namespace terrace {

// out[i] = a[i] + b[i], added in fp32 and rounded once.
void add_rows(const float* a, const float* b, float* out, std::size_t numel);
void add_rows(const bf16* a, const bf16* b, bf16* out, std::size_t numel);
void add_rows(const f16* a, const f16* b, f16* out, std::size_t numel);

// sum[i] += row[i].
void accumulate_row(const float* row, float* sum, std::size_t numel);
void accumulate_row(const bf16* row, float* sum, std::size_t numel);
void accumulate_row(const f16* row, float* sum, std::size_t numel);

}  // namespace terrace
