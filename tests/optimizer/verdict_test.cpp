#include "src/optimizer/verdict.h"

#include <gtest/gtest.h>

#include <cmath>

#include "terrace/error.h"

namespace terrace {
namespace {

ExactSum sum_of(std::initializer_list<double> values) {
  ExactSum sum;
  for (const double value : values) sum.add(value);
  return sum;
}

TEST(Verdict, NormAndClip) {
  const Verdict verdict = make_verdict(sum_of({9.0, 16.0}), 1.0);
  EXPECT_TRUE(verdict.finite);
  EXPECT_EQ(verdict.sum_of_squares, 25.0);
  EXPECT_EQ(verdict.norm, 5.0);
  EXPECT_EQ(verdict.clip_factor, static_cast<float>(1.0 / (5.0 + 1e-6)));
  EXPECT_EQ(verdict.grad_scale, verdict.clip_factor);
}

TEST(Verdict, ASmallNormIsNotClipped) {
  EXPECT_EQ(make_verdict(sum_of({0.25}), 1.0).clip_factor, 1.0f);
  EXPECT_EQ(make_verdict(sum_of({}), 1.0).clip_factor, 1.0f);
  EXPECT_EQ(make_verdict(sum_of({}), 1.0).norm, 0.0);
}

TEST(Verdict, ZeroTurnsClippingOff) {
  const Verdict verdict = make_verdict(sum_of({1e10}), 0.0);
  EXPECT_EQ(verdict.clip_factor, 1.0f);
  EXPECT_EQ(verdict.norm, 1e5);
}

TEST(Verdict, TheLossScaleIsTakenOut) {
  const Verdict verdict = make_verdict(sum_of({25.0 * 65536.0 * 65536.0}), 1.0, 65536.0);
  EXPECT_EQ(verdict.norm, 5.0);
  EXPECT_EQ(verdict.sum_of_squares, 25.0);
  EXPECT_EQ(verdict.grad_scale, static_cast<float>(1.0 / (5.0 + 1e-6) / 65536.0));
}

TEST(Verdict, ANonFiniteGradientDropsTheStep) {
  const Verdict verdict = make_verdict(sum_of({1.0, HUGE_VAL}), 1.0);
  EXPECT_FALSE(verdict.finite);
  EXPECT_TRUE(std::isinf(verdict.norm));
  EXPECT_EQ(verdict.grad_scale, 0.0f);
}

TEST(Verdict, ArgumentsOutOfRangeAreRefused) {
  for (const double bad : {-1.0, HUGE_VAL, std::nan("")}) {
    EXPECT_THROW(make_verdict(ExactSum(), bad), Error);
    EXPECT_THROW(make_verdict(ExactSum(), 1.0, bad), Error);
  }
  EXPECT_THROW(make_verdict(ExactSum(), 1.0, 0.0), Error);
}

}  // namespace
}  // namespace terrace
