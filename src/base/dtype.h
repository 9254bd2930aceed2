// Element types and the conversions between them (round to nearest even; a NaN stays a NaN).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace terrace {

enum class DType : std::uint8_t { f32, bf16, f16 };

constexpr std::size_t dtype_bytes(DType dtype) {
  return dtype == DType::f32 ? 4 : 2;
}

constexpr std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "fp32";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "fp16";
  }
  return "?";
}

// A bfloat16 is the upper half of a float; stored as its bits, so that arithmetic on it is always explicit.
struct bf16 {
  std::uint16_t bits = 0;
  friend bool operator==(bf16, bf16) = default;
};
static_assert(sizeof(bf16) == 2);

constexpr float to_float(bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}
constexpr float to_float(float value) {
  return value;
}

constexpr bf16 to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {  // NaN: keep the sign and the high payload, make it quiet
    return bf16{static_cast<std::uint16_t>((bits >> 16) | 0x0040u)};
  }
  return bf16{static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

template <typename T>
constexpr T from_float(float value) {
  if constexpr (sizeof(T) == 2) {
    return to_bf16(value);
  } else {
    return value;
  }
}

}  // namespace terrace
