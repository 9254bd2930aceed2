// The same numbers for any order of signals, any placement, budget, chunk size and number of threads.
#include <gtest/gtest.h>

#include <ostream>

#include "tests/embed/host_program.h"

namespace terrace::embed_test {
namespace {

constexpr std::uint64_t kSteps = 5;

struct Result {
  std::string hash;
  std::vector<double> norms;
  std::vector<std::vector<std::byte>> parameters;
  friend bool operator==(const Result&, const Result&) = default;
};
std::ostream& operator<<(std::ostream& out, const Result& result) {
  out.precision(17);
  for (const double norm : result.norms) out << norm << " ";
  return out << result.hash;
}

struct Case {
  std::uint32_t contributions;
  double clip_norm;
};

class SameBitsTest : public testing::TestWithParam<Case> {
 protected:
  Config in_memory() const { return memory_config(GetParam().contributions, GetParam().clip_norm); }
  Config on_disk(double share) {
    return disk_config(folder_.file(std::to_string(++stores_)), GetParam().contributions,
                       GetParam().clip_norm, share);
  }

  Result run(const Config& config, const RunOptions& options = {}, std::uint64_t seed = 0) {
    const Watchdog watchdog("a run");
    HostProgram program(odd_sizes());
    OptimizerBackend optimizer(config, program.registration(),
                               {.adversarial_seed = seed, .bounds = kSmallUnits});
    Result result;
    for (std::uint64_t step = 0; step < kSteps; ++step)
      result.norms.push_back(program.step(optimizer, GetParam().contributions, options).grad_norm);
    optimizer.wait_for_parameters();
    result.parameters = program.bytes();
    result.hash = optimizer.state_hash();
    return result;
  }

  TempDir folder_;
  int stores_ = 0;
};

TEST_P(SameBitsTest, AnyOrderOfSignals) {
  const Result first = run(in_memory());
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    EXPECT_EQ(run(in_memory(), {.order_seed = seed}), first);
    EXPECT_EQ(run(in_memory(), {.order_seed = seed, .two_threads = true}), first);
  }
  EXPECT_EQ(run(in_memory(), {.announce = true}), first);
  EXPECT_EQ(run(in_memory(), {.order_seed = 9, .announce = true, .wait_for_each = false}), first);
}

TEST_P(SameBitsTest, AnyPlacement) {
  const Result first = run(in_memory());
  const double share[] = {0, 0.5, 1};
  for (const double nvme : share) {
    EXPECT_EQ(run(on_disk(nvme)), first) << nvme;
    Config config = on_disk(nvme);
    config.commit.every_steps = 1;
    EXPECT_EQ(run(config, {.order_seed = 5, .announce = true}), first) << nvme;
    config = on_disk(nvme);
    config.commit.every_steps = 0;
    config.io.queue = "threads";
    EXPECT_EQ(run(config), first) << nvme;
  }
  Config device = on_disk(0);
  device.placement.parameters = device.placement.gradients =
      device.placement.optimizer_state = {false, 1, 0, 0};
  EXPECT_EQ(run(device), first);
  Config mixed = on_disk(0.3);
  mixed.placement.parameters = {false, 0.3, 0.3, 0.4};
  mixed.placement.optimizer_state = {false, 0.2, 0.2, 0.6};
  mixed.commit.every_steps = 2;
  EXPECT_EQ(run(mixed), first);
}

TEST_P(SameBitsTest, AnyChunkSizeAndNumberOfThreads) {
  const Result first = run(in_memory());
  for (const std::uint64_t numel : {4096u, 12288u, 1u << 20}) {
    for (const std::uint32_t threads : {1u, 2u, 5u}) {
      Config config = on_disk(0.6);
      config.placement.chunk_numel = numel;
      config.compute.threads = threads;
      EXPECT_EQ(run(config), first) << numel << " " << threads;
    }
  }
}

TEST_P(SameBitsTest, TheLeastBudgets) {
  const Result first = run(in_memory());
  Config config = on_disk(1);
  config.tiers.device_bytes = config.tiers.host_bytes = 1;
  HostProgram program(odd_sizes());
  try {
    const OptimizerBackend optimizer(config, program.registration(), {.bounds = kSmallUnits});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
    const std::string text = error.what();
    const auto number = [&](const std::string& key) {
      return std::stoull(text.substr(text.find(key) + key.size()));
    };
    config.tiers.device_bytes = number("tiers.device = ");
    config.tiers.host_bytes = number("tiers.host = ");
  }
  EXPECT_EQ(run(config, {.order_seed = 3}), first);
}

TEST_P(SameBitsTest, OperationsAsLateAsTheirWaitsAllow) {
  const Result first = run(in_memory());
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    Config config = on_disk(seed % 2 == 0 ? 1 : 0.5);
    config.compute.adversarial = true;
    config.commit.every_steps = 2;
    EXPECT_EQ(run(config, {.order_seed = seed, .announce = seed % 3 == 0}, seed), first) << seed;
  }
}

// Steps, waits and saves in any arrangement.
TEST_P(SameBitsTest, SavesAndHashesBetweenAnyTwoSteps) {
  const Result first = run(in_memory());
  for (int arrangement = 0; arrangement < 4; ++arrangement) {
    const Watchdog watchdog("saves");
    HostProgram program(odd_sizes());
    Config config = on_disk(0.5);
    config.commit.every_steps = arrangement == 1 ? 1 : 1000;
    OptimizerBackend optimizer(config, program.registration(), {.bounds = kSmallUnits});
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      program.step(optimizer, GetParam().contributions);
      if (arrangement % 2 == 1) optimizer.wait_for_parameters();
      optimizer.save();
      optimizer.save();
      if (arrangement >= 2) optimizer.wait_for_parameters(3);
      if (arrangement == 3) optimizer.state_hash();
    }
    optimizer.wait_for_parameters();
    EXPECT_EQ(program.bytes(), first.parameters) << arrangement;
    EXPECT_EQ(optimizer.state_hash(), first.hash) << arrangement;
  }
}

INSTANTIATE_TEST_SUITE_P(Steps, SameBitsTest, testing::Values(Case{1, 0}, Case{1, 1}, Case{3, 0}, Case{3, 1}),
                         [](const auto& at) {
                           return std::to_string(at.param.contributions) +
                                  (at.param.clip_norm > 0 ? "_clipped" : "_unclipped");
                         });

}  // namespace
}  // namespace terrace::embed_test
