#include "src/optimizer/loss_scale.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "terrace/error.h"
#include "tests/support/error_of.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

LossScaleOptions dynamic(double initial, std::uint64_t window, std::uint64_t hysteresis, double minimum) {
  return {
      .dynamic = true, .initial = initial, .window = window, .hysteresis = hysteresis, .minimum = minimum};
}

// The rules read off the whole history each time, step by step and without any counter that is kept: where
// the scale stands after `finite` (negative: the last step of it ends the run).
double scale_after(const LossScaleOptions& options, const std::vector<bool>& finite) {
  double scale = options.initial;
  for (std::size_t t = 0; t < finite.size(); ++t) {
    // Steps that doubled, before t: every window-th of a row of finite ones.
    const auto doubles = [&](std::size_t step) {
      std::size_t row = 0;
      for (std::size_t s = step + 1; s > 0 && finite[s - 1]; --s) ++row;
      return row > 0 && row % options.window == 0;
    };
    if (finite[t]) {
      if (doubles(t)) scale = std::min(2 * scale, kLargestLossScale);
      continue;
    }
    std::uint64_t overflows = 1;  // since the hysteresis was last whole, this one included
    for (std::size_t s = t; s > 0 && !doubles(s - 1); --s) overflows += finite[s - 1] ? 0 : 1;
    if (overflows < options.hysteresis) continue;
    if (scale == options.minimum) return -1;
    scale /= 2;
  }
  return scale;
}

TEST(LossScale, FollowsTheRulesOverRandomSequences) {
  std::mt19937 random(1);
  int ended = 0, raised = 0, lowered = 0;
  for (int round = 0; round < 400; ++round) {
    const LossScaleOptions options =
        dynamic(std::ldexp(1.0, static_cast<int>(random() % 6)), 1 + random() % 5, 1 + random() % 4,
                std::ldexp(1.0, -static_cast<int>(random() % 4)));
    const unsigned bad_of_ten = 1 + random() % 6;
    LossScale scale(options);
    std::vector<bool> history;
    for (int t = 0; t < 120; ++t) {
      const double before = scale.scale();
      history.push_back(random() % 10 >= bad_of_ten);
      const double want = scale_after(options, history);
      if (want < 0) {
        EXPECT_THROW(scale.update(history.back()), Error);
        EXPECT_EQ(scale.scale(), before);
        ++ended;
        break;
      }
      const LossScaleChange change = scale.update(history.back());
      ASSERT_EQ(scale.scale(), want) << "round " << round << " step " << t;
      ASSERT_EQ(change, want > before   ? LossScaleChange::raised
                        : want < before ? LossScaleChange::lowered
                                        : LossScaleChange::none);
      raised += change == LossScaleChange::raised;
      lowered += change == LossScaleChange::lowered;
      if (random() % 4 == 0) {  // a resume leaves no trace
        LossScale resumed(options);
        resumed.restore(scale.save());
        scale = resumed;
      }
    }
  }
  EXPECT_GT(ended, 20);
  EXPECT_GT(raised, 1000);
  EXPECT_GT(lowered, 1000);
}

TEST(LossScale, TheDefaultsAreDeepSpeeds) {
  LossScale scale({.dynamic = true});
  EXPECT_EQ(scale.scale(), 65536);
  EXPECT_EQ(scale.update(false), LossScaleChange::none) << "the hysteresis of 2 takes one";
  EXPECT_EQ(scale.update(true), LossScaleChange::none);
  EXPECT_EQ(scale.update(false), LossScaleChange::lowered) << "a finite step between gives nothing back";
  EXPECT_EQ(scale.update(false), LossScaleChange::lowered);
  EXPECT_EQ(scale.scale(), 16384);
  for (int i = 0; i < 999; ++i) ASSERT_EQ(scale.update(true), LossScaleChange::none);
  EXPECT_EQ(scale.update(true), LossScaleChange::raised);
  EXPECT_EQ(scale.scale(), 32768);
  EXPECT_EQ(scale.update(false), LossScaleChange::none) << "the hysteresis is whole again";
}

TEST(LossScale, AFixedOneNeverChanges) {
  for (const double fixed : {1.0, 300.5, 0x1p-20, kLargestLossScale}) {
    LossScale scale({.fixed = fixed, .window = 1});
    for (const bool finite : {true, false, false, false, true}) {
      EXPECT_EQ(scale.update(finite), LossScaleChange::none);
      EXPECT_EQ(scale.scale(), fixed);
    }
  }
}

TEST(LossScale, StopsRisingAtTheLargest) {
  LossScale scale(dynamic(kLargestLossScale / 2, 1, 1, 1));
  EXPECT_EQ(scale.update(true), LossScaleChange::raised);
  EXPECT_EQ(scale.update(true), LossScaleChange::none);
  EXPECT_EQ(scale.scale(), kLargestLossScale);
}

TEST(LossScale, AnOverflowAtTheMinimumIsExplained) {
  LossScale scale(dynamic(1, 10, 2, 0.5));
  EXPECT_EQ(scale.update(false), LossScaleChange::none);
  EXPECT_EQ(scale.update(false), LossScaleChange::lowered);
  const std::string error = error_of([&] { scale.update(false); });
  EXPECT_THAT(error, AllOf(HasSubstr("precision.loss_scale_minimum = 0.5"), HasSubstr("diverges"),
                           HasSubstr("optimizer.lr"), HasSubstr("65504"), HasSubstr("precision.compute")));
  EXPECT_EQ(scale.scale(), 0.5);
  EXPECT_THROW(scale.update(false), Error) << "again";
  for (int i = 0; i < 10; ++i) scale.update(true);
  EXPECT_EQ(scale.scale(), 1) << "and it goes on where finite steps follow";
}

TEST(LossScale, RestoreKeepsTheConfigurationsWord) {
  LossScale saved(dynamic(8, 100, 3, 1));
  saved.update(false);
  for (int i = 0; i < 50; ++i) saved.update(true);
  const std::string state = saved.save();
  LossScale fixed({.fixed = 5});
  fixed.restore(state);
  EXPECT_EQ(fixed.scale(), 5);
  LossScale fresh(dynamic(64, 100, 3, 1));
  fresh.restore(fixed.save());
  EXPECT_EQ(fresh.scale(), 64);
  LossScale narrower(dynamic(64, 20, 1, 16));
  narrower.restore(state);
  EXPECT_EQ(narrower.scale(), 16) << "raised to the new minimum";
  EXPECT_EQ(narrower.update(true), LossScaleChange::raised) << "50 steps are more than the new window";
  EXPECT_EQ(narrower.update(false), LossScaleChange::lowered) << "and the hysteresis is the new one";
}

TEST(LossScale, BrokenStatesAreRefused) {
  LossScale scale(dynamic(64, 100, 3, 1));
  for (const char* bad :
       {"", "{", "[]", "{}", R"({"dynamic":true,"scale":3.0,"finite_steps":0,"overflows_left":1})",
        R"({"dynamic":true,"scale":-2.0,"finite_steps":0,"overflows_left":1})",
        R"({"dynamic":true,"scale":1e300,"finite_steps":0,"overflows_left":1})",
        R"({"dynamic":true,"scale":2.0,"finite_steps":-1,"overflows_left":1})",
        R"({"dynamic":true,"scale":2.0,"finite_steps":0,"overflows_left":0})",
        R"({"dynamic":true,"scale":"2","finite_steps":0,"overflows_left":1})",
        R"({"dynamic":true,"scale":2.0,"finite_steps":0})"}) {
    EXPECT_THAT(error_of([&] { scale.restore(bad); }), HasSubstr("loss scale state")) << bad;
    EXPECT_EQ(scale.scale(), 64);
  }
}

TEST(LossScale, OptionsOutOfRangeAreRefusedByName) {
  const auto error = [](const LossScaleOptions& options) {
    return error_of([&] { LossScale scale(options); });
  };
  for (const double bad : {0.0, -1.0, HUGE_VAL, std::nan(""), 0x1p65}) {
    EXPECT_THAT(error({.fixed = bad}), HasSubstr("the fixed scale"));
    EXPECT_THAT(error(dynamic(bad, 1, 1, 1)), HasSubstr("initial"));
    EXPECT_THAT(error(dynamic(1, 1, 1, bad)), HasSubstr("minimum"));
  }
  EXPECT_THAT(error(dynamic(1000, 1, 1, 1)), HasSubstr("initial is 1000; wanted a power of two"));
  EXPECT_THAT(error(dynamic(4, 1, 1, 3)), HasSubstr("minimum is 3"));
  EXPECT_THAT(error(dynamic(4, 1, 1, 8)), HasSubstr("at most the initial scale"));
  EXPECT_THAT(error(dynamic(4, 0, 1, 1)), HasSubstr("window"));
  EXPECT_THAT(error(dynamic(4, 1, 0, 1)), HasSubstr("hysteresis"));
}

}  // namespace
}  // namespace terrace
