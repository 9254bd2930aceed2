#include "kernels/cpu/cast.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cpu/simd.h"
#include "tests/kernels/guarded_buffer.h"

namespace terrace {
namespace {

// Round to nearest even by the definition: the nearer of the two neighbours in double precision, ties to
// even.
bf16 nearest_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return bf16{static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  if (std::isinf(value)) return bf16{static_cast<std::uint16_t>(bits >> 16)};
  const std::uint32_t low = bits & 0xFFFF0000u;
  const double below = std::abs(static_cast<double>(std::bit_cast<float>(low)));
  // The next bf16 away from zero; past the largest it counts as 2^128.
  const std::uint32_t next = low + 0x10000u;
  const double above = (next & 0x7F800000u) == 0x7F800000u
                           ? std::ldexp(1.0, 128)
                           : std::abs(static_cast<double>(std::bit_cast<float>(next)));
  const double x = std::abs(static_cast<double>(value));
  const bool up = above - x < x - below || (above - x == x - below && ((low >> 16) & 1u) != 0);
  return bf16{static_cast<std::uint16_t>((up ? next : low) >> 16)};
}

// A half in double precision, by the definition of binary16: sign, 5 bits of exponent, 10 of fraction.
double half_value(std::uint32_t bits) {
  const int exponent = static_cast<int>((bits >> 10) & 0x1Fu);
  const double fraction = bits & 0x3FFu;
  const double sign = (bits & 0x8000u) != 0 ? -1.0 : 1.0;
  if (exponent == 0x1F) return fraction != 0 ? NAN : sign * HUGE_VAL;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024.0 + fraction, exponent - 25);
}

// The nearer of the two halves around `value`, found by bisection over all of them; past the largest the next
// one counts as 2^16.
f16 nearest_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  if (std::isnan(value)) return f16{static_cast<std::uint16_t>(sign | 0x7E00u | ((bits >> 13) & 0x3FFu))};
  const double x = std::abs(static_cast<double>(value));
  const auto magnitude = [](std::uint32_t half) { return half == 0x7C00u ? 65536.0 : half_value(half); };
  std::uint32_t low = 0, high = 0x7C00u;  // magnitude(low) <= x, unless x is larger than all
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    (magnitude(middle) <= x ? low : high) = middle;
  }
  const double below = x - magnitude(low), above = magnitude(high) - x;
  const bool up = above < below || (above == below && (low & 1u) != 0);
  return f16{static_cast<std::uint16_t>(sign | (up ? high : low))};
}

TEST(Cast, EveryKindOfValueRoundsToNearestEven) {
  std::vector<float> in;
  for (std::uint64_t pattern = 0; pattern < (std::uint64_t{1} << 32); pattern += 0x1FFF) {
    in.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(pattern)));
  }
  for (std::uint32_t high = 0; high < 0x10000u; high += 5) {
    for (const std::uint32_t low : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      in.push_back(std::bit_cast<float>((high << 16) | low));
    }
  }
  for (const SimdTarget target : supported_simd_targets()) {
    set_simd_target(target);
    std::vector<bf16> out(in.size());
    cast(in.data(), out.data(), in.size());
    for (std::size_t i = 0; i < in.size(); ++i) {
      ASSERT_EQ(out[i].bits, nearest_bf16(in[i]).bits) << simd_target_name(target) << " at " << in[i];
    }
  }
}

// Each half, each point in the middle of two, and the floats next to both; then a walk over all floats.
TEST(Cast, EveryKindOfValueRoundsToTheNearestHalf) {
  std::vector<float> in;
  for (std::uint32_t half = 0; half < 0x7C00u; ++half) {
    const double next = half == 0x7BFFu ? 65536.0 : half_value(half + 1);
    for (const double point : {half_value(half), (half_value(half) + next) / 2}) {
      const auto exact = static_cast<float>(point);
      ASSERT_EQ(exact, point);
      for (const float value : {exact, std::nextafter(exact, HUGE_VALF), std::nextafter(exact, -HUGE_VALF)}) {
        in.push_back(value);
        in.push_back(-value);
      }
    }
  }
  for (std::uint64_t pattern = 0; pattern < (std::uint64_t{1} << 32); pattern += 0x3FFF) {
    in.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(pattern)));
  }
  for (const std::uint32_t nan : {0x7F800001u, 0xFF800001u, 0x7FC01234u, 0xFFFFFFFFu, 0x7F802000u}) {
    in.push_back(std::bit_cast<float>(nan));
  }
  std::vector<f16> want;
  for (const float value : in) {
    want.push_back(nearest_f16(value));
    ASSERT_EQ(to_f16(value).bits, want.back().bits) << value;
  }
  for (const SimdTarget target : supported_simd_targets()) {
    set_simd_target(target);
    std::vector<f16> out(in.size());
    cast(in.data(), out.data(), in.size());
    for (std::size_t i = 0; i < in.size(); ++i) {
      ASSERT_EQ(out[i].bits, want[i].bits) << simd_target_name(target) << " at " << in[i];
    }
  }
}

TEST(Cast, EveryHalfIsWidenedExactlyAndComesBack) {
  std::vector<f16> in(0x10000);
  for (std::uint32_t i = 0; i < in.size(); ++i) in[i].bits = static_cast<std::uint16_t>(i);
  for (const SimdTarget target : supported_simd_targets()) {
    set_simd_target(target);
    std::vector<float> wide(in.size());
    std::vector<f16> back(in.size());
    cast(in.data(), wide.data(), in.size());
    cast(wide.data(), back.data(), in.size());
    for (std::uint32_t i = 0; i < in.size(); ++i) {
      const double value = half_value(i);
      const auto bits = std::bit_cast<std::uint32_t>(wide[i]);
      if (std::isnan(value)) {  // sign and payload stay, and it is quiet
        ASSERT_EQ(bits, (i & 0x8000u) << 16 | 0x7FC00000u | (i & 0x3FFu) << 13) << simd_target_name(target);
        ASSERT_EQ(back[i].bits, i | 0x200u);
        continue;
      }
      ASSERT_EQ(wide[i], value) << simd_target_name(target);
      ASSERT_EQ(std::signbit(wide[i]), (i & 0x8000u) != 0);
      ASSERT_EQ(back[i].bits, i) << simd_target_name(target);
    }
  }
}

TEST(Cast, EveryBf16ComesBack) {
  std::vector<bf16> in(0x10000);
  for (std::uint32_t i = 0; i < in.size(); ++i) in[i].bits = static_cast<std::uint16_t>(i);
  for (const SimdTarget target : supported_simd_targets()) {
    set_simd_target(target);
    std::vector<float> wide(in.size());
    cast(in.data(), wide.data(), in.size());
    for (std::uint32_t i = 0; i < in.size(); ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]), i << 16) << simd_target_name(target);
    }
  }
}

template <typename T>
void check_lengths() {
  std::mt19937 random(3);
  for (const SimdTarget target : supported_simd_targets()) {
    set_simd_target(target);
    for (std::size_t n = 0; n <= 1100; n += n < 80 ? 1 : 17) {
      GuardedBuffer<float> in(n);
      GuardedBuffer<T> out(n);
      GuardedBuffer<T> again(n);
      GuardedBuffer<float> back(n);
      for (std::size_t i = 0; i < n; ++i) in[i] = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
      cast(in.data(), out.data(), n);
      cast(out.data(), back.data(), n);
      cast_to(dtype_of<T>(), in.data(), again.data(), n);
      for (std::size_t i = 0; i < n; ++i) {
        ASSERT_EQ(out[i].bits, from_float<T>(in[i]).bits);
        ASSERT_EQ(again[i], out[i]);
        ASSERT_EQ(std::bit_cast<std::uint32_t>(back[i]), std::bit_cast<std::uint32_t>(to_float(out[i])));
      }
    }
  }
}

TEST(Cast, EveryLengthEndsBeforeTheGuardPage) {
  check_lengths<bf16>();
  check_lengths<f16>();
}

TEST(Cast, ToFp32IsACopy) {
  const std::vector<float> in{1.0f, -0.0f, HUGE_VALF, 1e-42f};
  std::vector<float> out(5, 7.0f);
  cast_to(DType::f32, in.data(), out.data(), in.size());
  EXPECT_EQ(std::memcmp(out.data(), in.data(), in.size() * sizeof(float)), 0);
  EXPECT_EQ(out[4], 7.0f);
}

}  // namespace
}  // namespace terrace
