// Conversions between fp32 and the 16-bit types.
#pragma once

#include <cstddef>

#include "src/base/dtype.h"

namespace terrace {

// out[i] = in[i] for i < numel, as to_bf16, to_f16 and to_float do it (round to nearest even; a NaN stays a
// NaN). Any alignment; `in` and `out` do not overlap. Thread-safe; one pass: 6 bytes an element.
void cast(const float* in, bf16* out, std::size_t numel);
void cast(const float* in, f16* out, std::size_t numel);
void cast(const bf16* in, float* out, std::size_t numel);
void cast(const f16* in, float* out, std::size_t numel);

// The same from fp32 to `dtype`, which may be fp32 (a copy).
void cast_to(DType dtype, const float* in, void* out, std::size_t numel);

}  // namespace terrace
