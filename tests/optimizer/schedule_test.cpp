#include "src/optimizer/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "terrace/error.h"

namespace terrace {
namespace {

TEST(Schedule, ConstantWithWarmUp) {
  const LearningRateSchedule schedule{.lr = 0.5, .warmup_steps = 4, .total_steps = 10};
  EXPECT_EQ(schedule.at(0), 0.125);
  EXPECT_EQ(schedule.at(1), 0.25);
  EXPECT_EQ(schedule.at(3), 0.5);
  EXPECT_EQ(schedule.at(4), 0.5);
  EXPECT_EQ(schedule.at(1000), 0.5);
}

TEST(Schedule, LinearEndsAtTheLastStep) {
  const LearningRateSchedule schedule{
      .kind = ScheduleKind::linear, .lr = 1.0, .warmup_steps = 0, .total_steps = 5, .min_ratio = 0.2};
  EXPECT_EQ(schedule.at(0), 1.0);
  EXPECT_NEAR(schedule.at(1), 0.8, 1e-15);
  EXPECT_NEAR(schedule.at(2), 0.6, 1e-15);
  EXPECT_EQ(schedule.at(4), 0.2);
  EXPECT_EQ(schedule.at(5), 0.2);
}

TEST(Schedule, CosineFollowsTheFormula) {
  const LearningRateSchedule schedule{
      .kind = ScheduleKind::cosine, .lr = 3e-4, .warmup_steps = 10, .total_steps = 200, .min_ratio = 0.1};
  for (std::uint64_t step = 0; step < 250; ++step) {
    const double t = static_cast<double>(step);
    const double share = step >= 199 ? 0.0 : 0.5 * (1.0 + std::cos(M_PI * (t - 9) / (199.0 - 9)));
    const double want = step < 10 ? 3e-4 * (t + 1) / 10 : 3e-4 * (0.1 + 0.9 * share);
    EXPECT_NEAR(schedule.at(step), want, 1e-15 * want) << step;
    if (step > 9) {
      EXPECT_LE(schedule.at(step), schedule.at(step - 1));
    }
  }
}

TEST(Schedule, ShortRunsAndOddWarmUps) {
  for (const ScheduleKind kind : {ScheduleKind::constant, ScheduleKind::linear, ScheduleKind::cosine}) {
    for (std::uint64_t total = 0; total < 6; ++total) {
      for (std::uint64_t warmup = 0; warmup < 8; ++warmup) {
        const LearningRateSchedule schedule{
            .kind = kind, .lr = 1.0, .warmup_steps = warmup, .total_steps = total, .min_ratio = 0.5};
        for (std::uint64_t step = 0; step < 10; ++step) {
          const double lr = schedule.at(step);
          EXPECT_GT(lr, 0.0);
          EXPECT_LE(lr, 1.0);
        }
      }
    }
  }
}

TEST(Schedule, PortableCosine) {
  double worst = 0;
  for (int i = 0; i <= 100000; ++i) {
    const double x = i / 100000.0;
    worst = std::max(worst, std::abs(portable_cos_pi(x) - std::cos(M_PI * x)));
  }
  EXPECT_LT(worst, 1e-15);
  EXPECT_EQ(portable_cos_pi(0.5), 0.0);
  EXPECT_EQ(portable_cos_pi(0.0), 1.0);
  EXPECT_EQ(portable_cos_pi(1.0), -1.0);
}

TEST(LrScaling, FollowsTheFormulas) {
  EXPECT_EQ(scaled_lr(3e-4, 512, 0, LrScaling::linear), 3e-4);
  EXPECT_EQ(scaled_lr(3e-4, 512, 0, LrScaling::sqrt), 3e-4);
  EXPECT_EQ(scaled_lr(3e-4, 256, 256, LrScaling::linear), 3e-4);
  EXPECT_EQ(scaled_lr(3e-4, 1024, 256, LrScaling::linear), 4 * 3e-4);
  EXPECT_EQ(scaled_lr(3e-4, 1024, 256, LrScaling::sqrt), 2 * 3e-4);
  EXPECT_EQ(scaled_lr(3e-4, 64, 256, LrScaling::linear), 3e-4 / 4);
  EXPECT_EQ(scaled_lr(3e-4, 64, 256, LrScaling::sqrt), 3e-4 / 2);
  EXPECT_NEAR(scaled_lr(0.1, 48, 32, LrScaling::sqrt), 0.1 * 1.2247448713915889, 1e-16);
  EXPECT_EQ(parse_lr_scaling("linear"), LrScaling::linear);
  EXPECT_EQ(parse_lr_scaling("sqrt"), LrScaling::sqrt);
  try {
    parse_lr_scaling("cube");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'cube'"), std::string::npos);
  }
}

TEST(Schedule, NamesAndRefusals) {
  EXPECT_EQ(parse_schedule_kind("cosine"), ScheduleKind::cosine);
  EXPECT_EQ(parse_schedule_kind("linear"), ScheduleKind::linear);
  EXPECT_EQ(parse_schedule_kind("constant"), ScheduleKind::constant);
  try {
    parse_schedule_kind("cosin");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'cosin'"), std::string::npos);
  }
  EXPECT_THROW((LearningRateSchedule{.lr = -1.0}.at(0)), Error);
  EXPECT_THROW((LearningRateSchedule{.lr = 1.0, .min_ratio = 1.5}.at(0)), Error);
}

}  // namespace
}  // namespace terrace
