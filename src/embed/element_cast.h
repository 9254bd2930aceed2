// Conversions between an embedding program's arrays and the engine's. Any alignment; thread-safe; no
// allocation. Sources and targets do not overlap.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/base/dtype.h"

namespace terrace {

// Half precision, exactly: subnormals too, a NaN stays a NaN.
float half_to_float(std::uint16_t bits);

// A gradient into a contribution (f32 or bf16): exact, or rounded once to nearest even.
void cast_gradient(const std::byte* from, DType from_dtype, std::byte* to, DType to_dtype, std::size_t numel);

// What a contribution holds where it did not reach a tensor: -0, which leaves every sum as it is.
void fill_absent(std::byte* to, DType dtype, std::size_t numel);

// f32 or bf16 to f32 or bf16.
void cast_parameters(const std::byte* from, DType from_dtype, std::byte* to, DType to_dtype,
                     std::size_t numel);

}  // namespace terrace
