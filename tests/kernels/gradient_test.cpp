#include "kernels/cpu/gradient.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu/simd.h"
#include "src/base/units.h"
#include "tests/kernels/guarded_buffer.h"

namespace terrace {
namespace {

// The rule of a block's sum, written out: sixteen lanes of doubles, then the tree.
double plain_block_sum(const float* values, std::size_t numel) {
  double lane[16] = {};
  for (std::size_t i = 0; i < numel; ++i) lane[i % 16] += static_cast<double>(values[i]) * values[i];
  for (int step = 8; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) lane[i] += lane[i + step];
  }
  return lane[0];
}

std::vector<double> plain_block_sums(const std::vector<float>& values) {
  std::vector<double> sums;
  for (std::size_t i = 0; i < values.size(); i += kBlockNumel) {
    sums.push_back(plain_block_sum(&values[i], std::min<std::size_t>(kBlockNumel, values.size() - i)));
  }
  return sums;
}

template <typename T>
void fill(GuardedBuffer<T>& buffer, std::mt19937& random, double magnitude) {
  std::normal_distribution<double> normal(0.0, magnitude);
  for (std::size_t i = 0; i < buffer.size(); ++i)
    buffer[i] = from_float<T>(static_cast<float>(normal(random)));
}

template <typename T>
void check_fold(std::size_t numel, std::size_t contributions, std::uint32_t seed) {
  for (const SimdTarget target : supported_simd_targets()) {
    set_simd_target(target);
    std::mt19937 random(seed);
    GuardedBuffer<T> gradient(numel);
    GuardedBuffer<float> accumulator(numel);
    std::vector<float> want(numel);
    const std::size_t blocks = div_up(numel, kBlockNumel);
    GuardedBuffer<double> sums(blocks);
    for (std::size_t k = 0; k < contributions; ++k) {
      const FoldPosition position{.first = k == 0, .last = k + 1 == contributions};
      fill(gradient, random, k == 1 ? 1e-3 : 1.0);
      for (std::size_t i = 0; i < numel; ++i) {
        want[i] = k == 0 ? to_float(gradient[i]) : want[i] + to_float(gradient[i]);
        if (position.last) want[i] = to_float(from_float<T>(want[i]));
      }
      ASSERT_TRUE(fold(gradient.data(), dtype_of<T>(), accumulator.data(), numel, position,
                       position.last ? sums.data() : nullptr));
    }
    for (std::size_t i = 0; i < numel; ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(accumulator[i]), std::bit_cast<std::uint32_t>(want[i]))
          << simd_target_name(target) << " element " << i << " of " << numel;
    }
    const std::vector<double> want_sums = plain_block_sums(want);
    ASSERT_EQ(want_sums.size(), blocks);
    for (std::size_t j = 0; j < blocks; ++j) ASSERT_EQ(sums[j], want_sums[j]) << simd_target_name(target);
  }
}

TEST(Gradient, FoldsAndSumsAtEveryLength) {
  for (std::size_t numel = 0; numel <= 1100; numel += numel < 70 ? 1 : 31) {
    for (const std::size_t contributions : {1, 2, 3}) {
      check_fold<bf16>(numel, contributions, 1);
      check_fold<f16>(numel, contributions, 1);
      check_fold<float>(numel, contributions, 2);
    }
  }
  for (const std::size_t numel : {4095, 4096, 4097, 8191, 8192, 8193, 3 * 4096 + 5}) {
    check_fold<bf16>(numel, 4, 3);
    check_fold<f16>(numel, 4, 3);
    check_fold<float>(numel, 4, 4);
  }
}

TEST(Gradient, AMinusZeroStaysInTheFirstContribution) {
  for (const SimdTarget target : supported_simd_targets()) {
    set_simd_target(target);
    const std::vector<bf16> gradient(20, bf16{0x8000});
    std::vector<float> accumulator(20, 1.0f);
    fold(gradient.data(), DType::bf16, accumulator.data(), 20, {.first = true}, nullptr);
    fold(gradient.data(), DType::bf16, accumulator.data(), 20, {}, nullptr);
    for (const float x : accumulator) EXPECT_EQ(std::bit_cast<std::uint32_t>(x), 0x80000000u);
  }
}

template <typename T>
void check_stats(std::size_t numel) {
  for (const SimdTarget target : supported_simd_targets()) {
    set_simd_target(target);
    std::mt19937 random(5);
    GuardedBuffer<T> gradient(numel);
    fill(gradient, random, 10.0);
    std::vector<float> values(numel);
    for (std::size_t i = 0; i < numel; ++i) values[i] = to_float(gradient[i]);
    GuardedBuffer<double> sums(div_up(numel, kBlockNumel));
    ASSERT_TRUE(gradient_stats(gradient.data(), dtype_of<T>(), numel, sums.data()));
    const std::vector<double> want = plain_block_sums(values);
    for (std::size_t j = 0; j < want.size(); ++j) {
      ASSERT_EQ(sums[j], want[j]) << simd_target_name(target) << " " << numel;
      double exact = 0;
      for (std::size_t i = j * kBlockNumel; i < std::min(numel, (j + 1) * kBlockNumel); ++i) {
        exact += static_cast<double>(values[i]) * values[i];
      }
      ASSERT_NEAR(sums[j], exact, 1e-12 * exact);
    }
  }
}

TEST(Gradient, StatsAtEveryLength) {
  for (std::size_t numel = 0; numel <= 1100; numel += numel < 70 ? 1 : 13) {
    check_stats<bf16>(numel);
    check_stats<f16>(numel);
    check_stats<float>(numel);
  }
  for (const std::size_t numel : {4095, 4096, 4097, 8193}) {
    check_stats<bf16>(numel);
    check_stats<f16>(numel);
    check_stats<float>(numel);
  }
}

TEST(Gradient, TheLargestAndSmallestFloatsAreFinite) {
  for (const SimdTarget target : supported_simd_targets()) {
    set_simd_target(target);
    for (const float value : {std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min()}) {
      const std::vector<float> gradient(4096, value);
      double sum = 0;
      EXPECT_TRUE(gradient_stats(gradient.data(), DType::f32, gradient.size(), &sum));
      const double want = 4096.0 * value * value;
      EXPECT_NEAR(sum, want, 1e-12 * want);
      EXPECT_GT(sum, 0.0);
    }
  }
}

template <typename T>
void check_bad_value(float bad) {
  constexpr std::size_t kNumel = kBlockNumel + 37;
  for (const SimdTarget target : supported_simd_targets()) {
    set_simd_target(target);
    std::vector<T> gradient(kNumel, from_float<T>(0.5f));
    std::vector<float> accumulator(kNumel);
    // The scalar target is slow: every 7th position there.
    for (std::size_t i = 0; i < kNumel; i += target == SimdTarget::scalar ? 7 : 1) {
      const T good = gradient[i];
      gradient[i] = from_float<T>(bad);
      double sums[2];
      ASSERT_FALSE(gradient_stats(gradient.data(), dtype_of<T>(), kNumel, sums)) << i;
      ASSERT_EQ(std::isinf(sums[0]), i < kBlockNumel);
      ASSERT_EQ(std::isinf(sums[1]), i >= kBlockNumel);
      ASSERT_FALSE(fold(gradient.data(), dtype_of<T>(), accumulator.data(), kNumel, {true, true}, sums)) << i;
      ASSERT_TRUE(std::isinf(sums[i / kBlockNumel]));
      gradient[i] = good;
    }
    double sums[2];
    ASSERT_TRUE(gradient_stats(gradient.data(), dtype_of<T>(), kNumel, sums));
  }
}

TEST(Gradient, ANonFiniteValueIsFoundAtEveryPosition) {
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    check_bad_value<bf16>(bad);
    check_bad_value<f16>(bad);
    check_bad_value<float>(bad);
  }
}

TEST(Gradient, ASumThatOverflowsIsNotFinite) {
  const std::vector<float> gradient(3, 3e38f);
  std::vector<float> accumulator(3);
  double sum = 0;
  EXPECT_TRUE(fold(gradient.data(), DType::f32, accumulator.data(), 3, {.first = true}, nullptr));
  EXPECT_FALSE(fold(gradient.data(), DType::f32, accumulator.data(), 3, {.last = true}, &sum));
}

// Contributions within fp16 whose sum is not: the rounding of the last one finds it.
TEST(Gradient, ASumBeyondFp16IsNotFinite) {
  for (const SimdTarget target : supported_simd_targets()) {
    set_simd_target(target);
    const std::vector<f16> gradient(19, to_f16(-40000.0f));
    std::vector<float> accumulator(19);
    double sum = 0;
    EXPECT_TRUE(fold(gradient.data(), DType::f16, accumulator.data(), 19, {.first = true}, nullptr));
    EXPECT_EQ(accumulator[3], -40000.0f);
    EXPECT_FALSE(fold(gradient.data(), DType::f16, accumulator.data(), 19, {.last = true}, &sum));
    EXPECT_TRUE(std::isinf(sum));
    EXPECT_TRUE(std::isinf(accumulator[18]));
  }
}

}  // namespace
}  // namespace terrace
