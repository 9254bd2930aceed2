// From the configuration to the schedule.
#include "src/train/setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/error_of.h"

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

// A width of 6 and 39 characters: sizes that fit nothing.
Config small_model(std::vector<ParameterGroup> groups) {
  Config config;
  config.model.layers = 2;
  config.model.width = 6;
  config.model.heads = 2;
  config.model.vocabulary = 39;
  config.model.context = 5;
  config.optimizer.weight_decay = 0.125;
  config.optimizer.groups = std::move(groups);
  return config;
}

AdamWHyper hyper_of(const Config& config, const std::string& name) {
  const ModelShape model = model_shape(config);
  const std::vector<AdamWHyper> groups = groups_at(config, 0.5);
  for (const UnitShape& unit : model.units) {
    for (const TensorShape& tensor : unit.tensors) {
      if (tensor.name == name) return groups.at(tensor.group);
    }
  }
  ADD_FAILURE() << "no tensor " << name;
  return {};
}

TEST(ParameterGroups, TheFirstEntryThatMatchesHasTheTensor) {
  const Config config = small_model({{"h.*.mlp.*", 0.5, {}, false},
                                     {"*.bias", 2, 0.75, false},
                                     {"wt?.weight", 0, {}, false},
                                     {"h.1.ln_[12].weight", 4, {}, false}});
  const auto expect = [&](const std::string& name, double lr, double weight_decay) {
    const AdamWHyper hyper = hyper_of(config, name);
    EXPECT_EQ(hyper.lr, lr) << name;
    EXPECT_EQ(hyper.weight_decay, weight_decay) << name;
    EXPECT_EQ(hyper.beta2, config.optimizer.beta2);
  };
  expect("h.0.mlp.fc.weight", 0.25, 0.125);  // as it comes: a matrix decays
  expect("h.1.mlp.fc.bias", 0.25, 0);        // a bias does not; the entry after it comes too late
  expect("h.0.attn.qkv.bias", 1, 0.75);
  expect("ln_f.bias", 1, 0.75);
  expect("wte.weight", 0, 0.125);
  expect("wpe.weight", 0.5, 0.125);  // of no entry
  expect("h.0.ln_1.weight", 0.5, 0);
  expect("h.1.ln_2.weight", 2, 0);
}

TEST(ParameterGroups, SayWhichTensorsAreFrozen) {
  const ModelShape model = model_shape(small_model({{"h.0.*", 1, {}, true}, {"*.bias", 2, {}, false}}));
  for (const UnitShape& unit : model.units) {
    for (const TensorShape& tensor : unit.tensors)
      EXPECT_EQ(tensor.frozen, tensor.name.starts_with("h.0.")) << tensor.name;
  }
  EXPECT_THAT(error_of([] {
                model_shape(small_model({{"*", 1, {}, true}}));
              }),
              testing::HasSubstr("freezes every tensor"));
}

TEST(ParameterGroups, AnEntryWithoutATensorIsRefused) {
  const auto refusal = [](std::vector<ParameterGroup> groups) {
    return error_of([&] { model_shape(small_model(std::move(groups))); });
  };
  EXPECT_THAT(refusal({{"*.bias", 1, {}, false}, {"h.0.mlp.fc.wieght", 2, {}, false}}),
              testing::HasSubstr("optimizer.groups[1] (match = \"h.0.mlp.fc.wieght\") matches no tensor; the "
                                 "nearest name is h.0.mlp.fc.weight"));
  EXPECT_THAT(
      refusal({{"h.*", 1, {}, false}, {"wte.weight", 1, {}, false}, {"h.1.*.bias", 2, {}, false}}),
      testing::HasSubstr("optimizer.groups[2] (match = \"h.1.*.bias\") has no effect: what it matches "
                         "belongs to earlier entries, first optimizer.groups[0] (match = \"h.*\")"));
}

}  // namespace
}  // namespace terrace
