// From the configuration to the schedule.
#include "src/train/setup.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

Config config_of(std::uint32_t micro_batch, std::uint32_t micro_batches) {
  Config config;
  config.train.micro_batch = micro_batch;
  config.train.micro_batches = micro_batches;
  config.train.steps = 100;
  config.optimizer.lr = 0.25;
  config.optimizer.schedule = "constant";
  config.optimizer.warmup_steps = 4;
  return config;
}

TEST(EffectiveBatch, CountsEveryContribution) {
  EXPECT_EQ(effective_batch(config_of(16, 2)), 32u);
  EXPECT_EQ(effective_batch(config_of(1u << 24, 1u << 24)), std::uint64_t{1} << 48);
}

TEST(ScheduleOf, ScalesThePeakAndWarmsUpToIt) {
  Config config = config_of(16, 8);
  EXPECT_EQ(schedule_of(config).at(4), 0.25);
  config.train.lr_reference_batch = 32;
  EXPECT_EQ(schedule_of(config).at(0), 0.25);  // a quarter of the peak
  EXPECT_EQ(schedule_of(config).at(3), 1.0);
  EXPECT_EQ(schedule_of(config).at(50), 1.0);
  config.train.lr_scaling = "sqrt";
  EXPECT_EQ(schedule_of(config).at(0), 0.125);
  EXPECT_EQ(schedule_of(config).at(50), 0.5);
  config.train.micro_batches = 1;
  config.train.lr_reference_batch = 64;
  EXPECT_EQ(schedule_of(config).at(50), 0.125);
  config.train.lr_scaling = "linear";
  EXPECT_EQ(schedule_of(config).at(50), 0.0625);
  // The floor of a decay scales with the peak.
  config.optimizer.schedule = "linear";
  config.optimizer.min_lr_ratio = 0.5;
  EXPECT_EQ(schedule_of(config).at(99), 0.03125);
}

}  // namespace
}  // namespace terrace
