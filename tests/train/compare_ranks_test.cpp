#include "src/train/compare_ranks.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace terrace {
namespace {

template <typename T>
double difference(DType dtype, const std::vector<T>& a, const std::vector<T>& b) {
  return largest_difference(to_doubles(dtype, std::as_bytes(std::span(a))),
                            to_doubles(dtype, std::as_bytes(std::span(b))));
}

TEST(LargestDifference, IsTheLargestOfAbsoluteValues) {
  EXPECT_EQ(difference<float>(DType::f32, {}, {}), 0);
  EXPECT_EQ(difference<float>(DType::f32, {1, 2, 3}, {1, 2, 3}), 0);
  EXPECT_EQ(difference<float>(DType::f32, {1, 2, 3}, {1.5f, -2, 3}), 4);
  EXPECT_EQ(difference<float>(DType::f32, {0x1p-149f}, {0}), 0x1p-149);  // the smallest there is
  EXPECT_EQ(difference<float>(DType::f32, {3e38f}, {-3e38f}), 2 * static_cast<double>(3e38f));
  EXPECT_EQ(difference<bf16>(DType::bf16, {to_bf16(1), to_bf16(-8)}, {to_bf16(1.25f), to_bf16(-8)}), 0.25);
  EXPECT_EQ(difference<f16>(DType::f16, {to_f16(1)}, {to_f16(1.5f)}), 0.5);
}

TEST(LargestDifference, ANaNIsNotHidden) {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(difference<float>(DType::f32, {infinity}, {infinity}), 0);
  EXPECT_TRUE(std::isnan(difference<float>(DType::f32, {nan}, {nan})));
  EXPECT_TRUE(std::isnan(difference<float>(DType::f32, {nan, 0}, {1, 5})));
  EXPECT_TRUE(std::isnan(difference<float>(DType::f32, {0, nan}, {5, 1})));
  EXPECT_EQ(difference<float>(DType::f32, {infinity}, {1}), std::numeric_limits<double>::infinity());
}

TEST(RankDifferences, SayWhatTheyAre) {
  EXPECT_EQ(to_text(RankDifferences{12, {0, 0.125, 0}}),
            "max |rank 0 - rank 1| = 0.125 over 12 parameters\n"
            "max |rank 0 - rank 2| = 0 over 12 parameters\n");
}

}  // namespace
}  // namespace terrace
