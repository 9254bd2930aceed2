// What a step does beside updating: tensors that no gradient reached, dropped steps, many tiny tensors, large
// ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "terrace/store.h"
#include "tests/embed/host_program.h"

namespace terrace::embed_test {
namespace {

struct Case {
  std::uint32_t contributions;
  double clip_norm;
};

class StepTest : public testing::TestWithParam<Case> {
 protected:
  std::uint32_t contributions() const { return GetParam().contributions; }
  Config config(double share = 0.5) {
    return disk_config(folder_.file(std::to_string(++stores_)), contributions(), GetParam().clip_norm, share);
  }
  TempDir folder_;
  int stores_ = 0;
};

// Three steps of five do not reach tensor 4: parameters, states and step count are those of two steps.
TEST_P(StepTest, AnUntouchedTensorKeepsItsStateAndItsCount) {
  const auto steps_in_store = [&](const Config& config) {
    std::map<std::string, std::uint64_t> steps;
    for (const auto& chunk : list_store(config.store.path).chunks) {
      for (const auto& segment : chunk.segments) steps[segment.tensor] = segment.steps;
    }
    return steps;
  };
  for (const bool adversarial : {false, true}) {
    HostProgram program(odd_sizes());
    Config config = this->config();
    config.compute.adversarial = adversarial;
    OptimizerBackend optimizer(config, program.registration(), {.bounds = kSmallUnits});
    RunOptions options{.untouched = {{2, 4}, {3, 4}, {5, 4}, {1, 0}, {2, 8}}};
    for (std::uint64_t step = 1; step <= 5; ++step) {
      optimizer.wait_for_parameters();
      const auto before = program.bytes(4);
      program.step(optimizer, contributions(), options);
      optimizer.wait_for_parameters();
      EXPECT_EQ(program.bytes(4) == before, step != 1 && step != 4) << step;
    }
    optimizer.save();
    const auto steps = steps_in_store(config);
    EXPECT_EQ(steps.at(name_of_tensor(4)), 2u);
    EXPECT_EQ(steps.at(name_of_tensor(0)), 4u);
    EXPECT_EQ(steps.at(name_of_tensor(8)), 4u);
    EXPECT_EQ(steps.at(name_of_tensor(1)), 5u);
  }
}

TEST_P(StepTest, AStepWithoutAnyGradientChangesNothing) {
  HostProgram program(odd_sizes());
  OptimizerBackend optimizer(config(), program.registration(), {.bounds = kSmallUnits});
  program.run(optimizer, 2, contributions());
  const auto parameters = program.bytes();
  const std::string hash = optimizer.state_hash();
  const OptimizerVerdict verdict = optimizer.step(HostProgram::hyper(3));
  EXPECT_EQ(verdict.step, 3u);
  EXPECT_EQ(verdict.grad_norm, 0);
  EXPECT_FALSE(verdict.dropped);
  optimizer.wait_for_parameters();
  EXPECT_EQ(program.bytes(), parameters);
  EXPECT_EQ(optimizer.state_hash(), hash);
}

TEST_P(StepTest, AGradientThatIsNotFiniteIsDroppedOrRefused) {
  HostProgram program(odd_sizes());
  Config config = this->config();
  config.commit.every_steps = 1000;  // by save() alone
  {
    OptimizerBackend optimizer(config, program.registration(), {.bounds = kSmallUnits});
    program.run(optimizer, 2, contributions());
    optimizer.save();
    const std::string hash = optimizer.state_hash();
    const auto parameters = program.bytes();
    const float infinity = std::numeric_limits<float>::infinity();
    optimizer.gradient_ready(0, &infinity, ElementType::fp32);
    if (GetParam().clip_norm == 0) {
      try {
        optimizer.step(HostProgram::hyper(3));
        FAIL();
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr("not finite"));
      }
      EXPECT_THROW(optimizer.wait_for_parameters(), Error);
      EXPECT_THROW(optimizer.save(), Error);
    } else {
      const OptimizerVerdict verdict = optimizer.step(HostProgram::hyper(3));
      EXPECT_TRUE(verdict.dropped);
      EXPECT_EQ(verdict.grad_norm, std::numeric_limits<double>::infinity());
      optimizer.wait_for_parameters();
      EXPECT_EQ(program.bytes(), parameters);
      EXPECT_EQ(optimizer.state_hash(), hash);
      program.run(optimizer, 5, contributions());
    }
  }
  HostProgram again(odd_sizes());
  OptimizerBackend optimizer(config, again.registration(), {.use = StoreUse::resume, .bounds = kSmallUnits});
  EXPECT_EQ(optimizer.steps(), 2u);
}

// The first steps of a run with a loss scale are often dropped. What is committed then must not depend on
// what the program's memory holds when it resumes.
TEST(DroppedStepTest, StatesThatWereNeverUpdatedResumeFromTheStore) {
  const TempDir folder;
  const Config config = disk_config(folder.path(), 2, 1);
  std::string hash;
  HostProgram program(odd_sizes());
  const auto initial = program.bytes();
  {
    OptimizerBackend optimizer(config, program.registration(), {.bounds = kSmallUnits});
    const float infinity = std::numeric_limits<float>::infinity();
    optimizer.gradient_ready(0, &infinity, ElementType::fp32);
    EXPECT_TRUE(optimizer.step(HostProgram::hyper(1)).dropped);
    optimizer.save();
    hash = optimizer.state_hash();
  }
  for (std::size_t t = 0; t < program.size(); ++t)
    std::fill(program.bytes(t).begin(), program.bytes(t).end(), std::byte{0x3C});
  OptimizerBackend optimizer(config, program.registration(),
                             {.use = StoreUse::resume, .bounds = kSmallUnits});
  EXPECT_EQ(optimizer.steps(), 1u);
  optimizer.wait_for_parameters();
  EXPECT_EQ(program.bytes(), initial);
  EXPECT_EQ(optimizer.state_hash(), hash);
}

// Fewer contributions than train.micro_batches: those that lack are absent.
TEST(ShortStepTest, AStepMayEndBeforeItsLastContribution) {
  for (const double clip_norm : {0.0, 1.0}) {
    const auto run = [&](std::uint32_t made) {
      HostProgram program(odd_sizes());
      OptimizerBackend optimizer(memory_config(3, clip_norm), program.registration(),
                                 {.bounds = kSmallUnits});
      RunOptions options;
      for (std::size_t t = 0; t < program.size(); ++t) {
        for (std::uint32_t k = 1; k < 3; ++k) options.missed.insert({k, t});
      }
      for (int step = 0; step < 3; ++step) program.step(optimizer, made, options);
      return optimizer.state_hash();
    };
    EXPECT_EQ(run(1), run(3));
    EXPECT_EQ(run(2), run(3));
  }
}

TEST_P(StepTest, ThousandsOfTinyTensors) {
  std::vector<TensorSpec> specs;
  for (std::uint64_t t = 0; t < 3000; ++t)
    specs.push_back({1 + t % 3, ElementType::fp32, ElementType::fp32, 0});
  const auto run = [&](const Config& config, std::uint64_t order) {
    const Watchdog watchdog("tiny tensors");
    HostProgram program(specs);
    OptimizerBackend optimizer(config, program.registration(), {});
    program.run(optimizer, 3, contributions(), {.order_seed = order});
    return std::pair(program.bytes(), optimizer.state_hash());
  };
  const auto first = run(memory_config(contributions(), GetParam().clip_norm), 0);
  EXPECT_EQ(run(config(1), 7), first);
}

// Cut over units of the size that users get.
TEST(LargeTensorTest, SpansUnits) {
  const std::vector<TensorSpec> specs{{5},
                                      {9'000'001, ElementType::bf16, ElementType::bf16, 1},
                                      {4096, ElementType::bf16, ElementType::bf16}};
  const auto run = [&](Config config, std::uint64_t order) {
    config.tiers.device_bytes = 600u << 20;
    config.placement.chunk_numel = 1u << 20;
    HostProgram program(specs);
    OptimizerBackend optimizer(config, program.registration(), {});
    program.run(optimizer, 1, 2, {.order_seed = order});
    return std::pair(program.bytes(), optimizer.state_hash());
  };
  const TempDir folder;
  Config disk = disk_config(folder.path(), 2, 1, 0.2);
  disk.tiers.nvme[0].size_bytes = 500u << 20;
  EXPECT_TRUE(run(disk, 3) == run(memory_config(2, 1), 0));
}

INSTANTIATE_TEST_SUITE_P(Steps, StepTest, testing::Values(Case{1, 0}, Case{1, 1}, Case{3, 0}, Case{3, 1}),
                         [](const auto& at) {
                           return std::to_string(at.param.contributions) +
                                  (at.param.clip_norm > 0 ? "_clipped" : "_unclipped");
                         });

}  // namespace
}  // namespace terrace::embed_test
