#include "src/embed/element_cast.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "kernels/cpu/cast.h"
#include "src/base/fail.h"

namespace terrace {
namespace {

constexpr std::size_t kPiece = 1024;

// Through a piece of fp32 on the stack.
void cast_half(const std::byte* from, std::byte* to, DType to_dtype, std::size_t numel) {
  std::array<std::uint16_t, kPiece> halves;
  std::array<float, kPiece> floats;
  for (std::size_t at = 0; at < numel; at += kPiece) {
    const std::size_t count = std::min(kPiece, numel - at);
    std::memcpy(halves.data(), from + at * sizeof(std::uint16_t), count * sizeof(std::uint16_t));
    for (std::size_t i = 0; i < count; ++i) floats[i] = half_to_float(halves[i]);
    cast_parameters(reinterpret_cast<const std::byte*>(floats.data()), DType::f32,
                    to + at * dtype_bytes(to_dtype), to_dtype, count);
  }
}

}  // namespace

float half_to_float(std::uint16_t bits) {
  // The exponent is rebased by a product, which also normalises subnormals; what was infinite or NaN is made
  // so again.
  const std::uint32_t magnitude = (bits & 0x7FFFu) << 13;
  std::uint32_t result = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  if ((bits & 0x7C00u) == 0x7C00u) result = magnitude | 0x7F800000u;
  return std::bit_cast<float>(result | (static_cast<std::uint32_t>(bits & 0x8000u) << 16));
}

void cast_gradient(const std::byte* from, DType from_dtype, std::byte* to, DType to_dtype,
                   std::size_t numel) {
  if (from_dtype == DType::f16) return cast_half(from, to, to_dtype, numel);
  cast_parameters(from, from_dtype, to, to_dtype, numel);
}

void fill_absent(std::byte* to, DType dtype, std::size_t numel) {
  if (dtype == DType::f32) {
    std::fill_n(reinterpret_cast<float*>(to), numel, -0.0f);
  } else {
    std::fill_n(reinterpret_cast<bf16*>(to), numel, to_bf16(-0.0f));
  }
}

void cast_parameters(const std::byte* from, DType from_dtype, std::byte* to, DType to_dtype,
                     std::size_t numel) {
  check(from_dtype != DType::f16 && to_dtype != DType::f16, "fp16 parameters");
  if (from_dtype == to_dtype) {
    std::memcpy(to, from, numel * dtype_bytes(to_dtype));
  } else if (to_dtype == DType::bf16) {
    cast(reinterpret_cast<const float*>(from), reinterpret_cast<bf16*>(to), numel);
  } else {
    cast(reinterpret_cast<const bf16*>(from), reinterpret_cast<float*>(to), numel);
  }
}

}  // namespace terrace
