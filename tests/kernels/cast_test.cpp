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

TEST(Cast, EveryLengthEndsBeforeTheGuardPage) {
  std::mt19937 random(3);
  for (const SimdTarget target : supported_simd_targets()) {
    set_simd_target(target);
    for (std::size_t n = 0; n <= 1100; n += n < 80 ? 1 : 17) {
      GuardedBuffer<float> in(n);
      GuardedBuffer<bf16> out(n);
      GuardedBuffer<float> back(n);
      for (std::size_t i = 0; i < n; ++i) in[i] = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
      cast(in.data(), out.data(), n);
      cast(out.data(), back.data(), n);
      for (std::size_t i = 0; i < n; ++i) {
        ASSERT_EQ(out[i].bits, to_bf16(in[i]).bits);
        ASSERT_EQ(std::bit_cast<std::uint32_t>(back[i]), std::bit_cast<std::uint32_t>(to_float(out[i])));
      }
    }
  }
}

}  // namespace
}  // namespace terrace
