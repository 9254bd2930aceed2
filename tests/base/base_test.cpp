#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "src/base/aligned_memory.h"
#include "src/base/dtype.h"
#include "src/base/fail.h"
#include "src/base/hash.h"
#include "src/base/parallel_for.h"
#include "src/base/random.h"
#include "src/base/units.h"

namespace terrace {
namespace {

TEST(Units, ParsesWhatItPrints) {
  EXPECT_EQ(parse_bytes("512MiB"), 512 * kMiB);
  EXPECT_EQ(parse_bytes("1.5 GiB"), 3 * kGiB / 2);
  EXPECT_EQ(parse_bytes("2GB"), 2'000'000'000u);
  EXPECT_EQ(parse_bytes("0"), 0u);
  EXPECT_EQ(parse_bytes(format_bytes(64 * kKiB)), 64 * kKiB);
  for (const char* bad : {"", "-1", "MiB", "1 mib", "1MiBx", "nan", "inf", "1e30"}) {
    EXPECT_FALSE(parse_bytes(bad)) << bad;
  }
}

TEST(DTypes, Bf16RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(to_bf16(1.0f).bits, 0x3F80);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3F808000u)).bits, 0x3F80);  // a tie goes to even
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3F818000u)).bits, 0x3F82);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3F808001u)).bits, 0x3F81);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7F80);  // rounds to infinity
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::bit_cast<float>(0x7F800001u)))));
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::bit_cast<float>(0xFFFFFFFFu)))));
  EXPECT_EQ(to_bf16(-0.0f).bits, 0x8000);
}

// The corners; cast_test.cpp of the kernels goes over all of them.
TEST(DTypes, F16RoundsToNearestEvenAndKeepsNan) {
  static_assert(to_f16(1.0f).bits == 0x3C00 && to_float(f16{0x3C00}) == 1.0f);
  EXPECT_EQ(to_f16(65504.0f).bits, 0x7BFF);
  EXPECT_EQ(to_f16(std::nextafter(65520.0f, 0.0f)).bits, 0x7BFF);
  EXPECT_EQ(to_f16(65520.0f).bits, 0x7C00);  // a tie between the largest and what would follow
  EXPECT_EQ(to_f16(-65520.0f).bits, 0xFC00);
  EXPECT_EQ(to_f16(1.0f + 0x1p-11f).bits, 0x3C00);  // a tie goes to even
  EXPECT_EQ(to_f16(1.0f + 3 * 0x1p-11f).bits, 0x3C02);
  EXPECT_EQ(to_f16(0x1p-14f).bits, 0x0400);
  EXPECT_EQ(to_f16(0x1p-24f).bits, 0x0001);
  EXPECT_EQ(to_f16(0x1p-25f).bits, 0x0000);
  EXPECT_EQ(to_f16(-std::nextafter(0x1p-25f, 1.0f)).bits, 0x8001);
  EXPECT_EQ(to_f16(std::nextafter(0x1p-14f, 0.0f)).bits, 0x0400);  // rounds up to the smallest normal
  EXPECT_EQ(to_f16(-0.0f).bits, 0x8000);
  EXPECT_EQ(to_f16(std::bit_cast<float>(0x7F800001u)).bits, 0x7E00);
  EXPECT_TRUE(std::isnan(to_float(f16{0xFC01})));
  EXPECT_EQ(to_float(f16{0x8001}), -0x1p-24f);
  EXPECT_EQ(rounded_to(DType::f16, 70000.0f), std::numeric_limits<float>::infinity());
  EXPECT_EQ(rounded_to(DType::bf16, 1.0f + 0x1p-10f), 1.0f);
  EXPECT_EQ(rounded_to(DType::f32, 0.1f), 0.1f);
}

TEST(Hashes, SumIsOrderIndependentAndInvertible) {
  const Hash128 a = hash128("a"), b = hash128("b"), c = hash128("c");
  Hash128 x = a, y = c;
  x += b;
  x += c;
  y += a;
  y += b;
  EXPECT_EQ(x, y);
  x -= b;
  y = a;
  y += c;
  EXPECT_EQ(x, y);
  EXPECT_EQ(to_hex(Hash128{1, 2}), "00000000000000020000000000000001");
}

TEST(Random, PhiloxMatchesThePublishedVectors) {
  const std::array<std::uint32_t, 4> zero{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u};
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), zero);
  const std::array<std::uint32_t, 4> ones{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu};
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), ones);
}

TEST(Random, NormalHasTheRightMomentsAndTails) {
  double sum = 0, squares = 0;
  const int n = 200000;
  for (int i = 0; i < n; ++i) {
    const double x = random_normal(7, 11, static_cast<std::uint64_t>(i), 0);
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / n, 0, 0.01);
  EXPECT_NEAR(squares / n, 1, 0.01);
  EXPECT_NEAR(inverse_normal(0.975), 1.959963984540054, 1e-8);
  EXPECT_NEAR(inverse_normal(1e-10), -6.361340902404056, 1e-7);
  for (double x : {1e-300, 0.3, 0.7071, 1.0, 2.5, 1e10})
    EXPECT_NEAR(portable_log(x), std::log(x), 1e-13 * 700);
}

TEST(ParallelFor, VisitsEachOnceAndRethrows) {
  for (const int threads : {1, 2, 5}) {
    set_parallel_threads(threads);
    for (const std::size_t n : {0u, 1u, 2u, 1000u}) {
      std::vector<std::atomic<int>> seen(n);
      parallel_for(n, [&](std::size_t i) { ++seen[i]; });
      for (auto& s : seen) EXPECT_EQ(s.load(), 1);
    }
    EXPECT_THROW(parallel_for(10,
                              [](std::size_t i) {
                                if (i == 3) throw std::runtime_error("three");
                              }),
                 std::runtime_error);
  }
  set_parallel_threads(0);
}

TEST(AlignedMemory, IsAlignedZeroedAndMovable) {
  AlignedMemory memory(3 * kMiB + 1, "a test");
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data()) % kHugePageBytes, 0u);
  EXPECT_EQ(memory.size(), 3 * kMiB + 4096);
  EXPECT_EQ(memory.data()[3 * kMiB], std::byte{0});
  AlignedMemory moved = std::move(memory);
  EXPECT_NE(moved.data(), nullptr);
  try {
    AlignedMemory impossible(std::size_t{1} << 60, "the impossible");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
    EXPECT_NE(std::string(error.what()).find("the impossible"), std::string::npos);
  }
}

}  // namespace
}  // namespace terrace
