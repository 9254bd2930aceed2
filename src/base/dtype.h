// Element types and the conversions between them (round to nearest even; a NaN stays a NaN).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

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

// An IEEE 754 binary16 (half precision), stored as its bits: 1 sign, 5 exponent, 10 fraction; largest 65504,
// smallest normal 2^-14, smallest subnormal 2^-24.
struct f16 {
  std::uint16_t bits = 0;
  friend bool operator==(f16, f16) = default;
};
static_assert(sizeof(f16) == 2);

// Exact, subnormals too. A NaN keeps its sign and payload and becomes quiet, as the F16C instructions do it.
constexpr float to_float(f16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 0x1Fu;
  const std::uint32_t fraction = value.bits & 0x3FFu;
  if (exponent == 0) {  // a whole number of 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  if (exponent == 0x1F) {
    const std::uint32_t quiet = fraction != 0 ? 0x00400000u : 0u;
    return std::bit_cast<float>(sign | 0x7F800000u | quiet | (fraction << 13));
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
}

// What is 65520 or more in magnitude becomes infinite; what is 2^-25 or less becomes a zero of its sign.
constexpr f16 to_f16(float value) {
  const auto all = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (all >> 16) & 0x8000u;
  const std::uint32_t magnitude = all & 0x7FFFFFFFu;
  std::uint32_t result = 0;
  if (magnitude > 0x7F800000u) {  // NaN: keep the sign and the high payload, make it quiet
    result = 0x7E00u | ((magnitude >> 13) & 0x3FFu);
  } else if (magnitude >= 0x477FF000u) {
    result = 0x7C00u;
  } else if (magnitude <
             0x38800000u) {  // subnormal: the unit in the last place of 0.5 is 2^-24, so adding rounds
    result = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F000000u;
  } else {
    result = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
  }
  return f16{static_cast<std::uint16_t>(sign | result)};
}

template <typename T>
constexpr T from_float(float value) {
  if constexpr (std::is_same_v<T, bf16>) {
    return to_bf16(value);
  } else if constexpr (std::is_same_v<T, f16>) {
    return to_f16(value);
  } else {
    static_assert(std::is_same_v<T, float>);
    return value;
  }
}

// The DType of float, bf16 or f16.
template <typename T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, bf16>) {
    return DType::bf16;
  } else if constexpr (std::is_same_v<T, f16>) {
    return DType::f16;
  } else {
    static_assert(std::is_same_v<T, float>);
    return DType::f32;
  }
}

// `value` rounded once to `dtype` and widened again.
constexpr float rounded_to(DType dtype, float value) {
  switch (dtype) {
    case DType::bf16:
      return to_float(to_bf16(value));
    case DType::f16:
      return to_float(to_f16(value));
    case DType::f32:
      break;
  }
  return value;
}

}  // namespace terrace
