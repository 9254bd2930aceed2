// Contract C1: within one family (a cut into contributions, an instruction set of the matrix products) every
// loss, norm and the final hash are the same bits wherever things lie and however many threads work. Between
// families bits differ.
#include <gtest/gtest.h>

#include "kernels/cpu/simd.h"
#include "tests/e2e/tiny_run.h"

namespace terrace::e2e {
namespace {

struct Cut {
  std::uint32_t micro_batch;
  std::uint32_t micro_batches;
  const char* compute;
  double clip_norm = 1;  // 0: updates need no verdict and run in backward
};

std::ostream& operator<<(std::ostream& out, const Cut& cut) {
  return out << cut.micro_batches << " contributions of " << cut.micro_batch << " samples, " << cut.compute
             << (cut.clip_norm > 0 ? "" : ", no clipping");
}

class PlacementTest : public testing::TestWithParam<Cut> {
 protected:
  void cut(Config& config) const {
    config.train.micro_batch = GetParam().micro_batch;
    config.train.micro_batches = GetParam().micro_batches;
    config.precision.compute = GetParam().compute;
    config.optimizer.clip_norm = GetParam().clip_norm;
  }
  Config in_memory() const {
    Config config = workspace_.config();
    cut(config);
    return config;
  }
  Config on_disk() {
    Config config = workspace_.config_on_disk();
    cut(config);
    return config;
  }

  Workspace workspace_;
};

TEST_P(PlacementTest, EveryTierGivesTheSameBits) {
  const Record memory = run(in_memory());
  ASSERT_EQ(memory.losses.size(), 4u);
  EXPECT_LT(memory.losses.back(), memory.losses.front());
  for (const char* tier : {"device", "host", "nvme"}) {
    Config config = on_disk();
    place_all(config, only(tier));
    config.train.recompute = tier[0] == 'h' ? "never" : "always";
    EXPECT_EQ(run(config), memory) << tier;
  }
  Config states = on_disk();
  states.placement.optimizer_state = only("nvme");
  EXPECT_EQ(run(states), memory) << "states on disk";
  Config least = on_disk();
  place_all(least, only("nvme"));
  least = with_least_budgets(least);
  EXPECT_EQ(run(least), memory) << "everything on disk, least budgets";
  for (const double half : {0.25, 0.5}) {
    Config halves = on_disk();
    place_all(halves, shares(0.5 - half / 2, half, 0.5 - half / 2));
    EXPECT_EQ(run(halves), memory) << half;
    halves = on_disk();
    place_all(halves, shares(0, half, 1 - half));
    EXPECT_EQ(run(with_least_budgets(halves)), memory) << half;
  }
}

TEST_P(PlacementTest, ChunksThreadsQueuesAndCommitsDoNotShow) {
  const Record memory = run(in_memory());
  for (const std::uint64_t chunk_numel : {4096u, 12288u, 262144u}) {
    Config config = on_disk();
    place_all(config, shares(0, 0.5, 0.5));
    config.placement.chunk_numel = chunk_numel;
    EXPECT_EQ(run(config), memory) << chunk_numel;
  }
  Config behind = on_disk();
  place_all(behind, shares(0, 0.5, 0.5));
  behind.placement.prefetch = false;
  EXPECT_EQ(run(behind), memory) << "nothing fetched ahead";
  for (const std::uint32_t threads : {1u, 3u, 5u}) {
    Config config = on_disk();
    place_all(config, only("nvme"));
    config.compute.threads = threads;
    EXPECT_EQ(run(config), memory) << threads << " threads";
  }
  for (const char* queue : {"threads", "uring"}) {
    for (const std::int64_t every : {0, 1, 3}) {
      Config config = on_disk();
      place_all(config, shares(0, 0.5, 0.5));
      config.io.queue = queue;
      config.io.depth = 2;
      config.io.piece_bytes = 16384;
      config.commit.every_steps = every;
      EXPECT_EQ(run(config), memory) << queue << " " << every;
    }
  }
}

// What drains between steps, and what never clips though it waits for the verdict.
TEST_P(PlacementTest, BordersBetweenStepsDoNotShow) {
  const Record memory = run(in_memory());
  for (const auto& where : {only("host"), only("nvme"), shares(0.2, 0.4, 0.4)}) {
    for (const std::int64_t every : {1, 2}) {
      Config config = on_disk();
      place_all(config, where);
      config.train.eval_every = 1;
      config.commit.every_steps = every;
      EXPECT_EQ(run(config), memory) << every;
    }
  }
  if (GetParam().clip_norm > 0) return;
  Config never = on_disk();
  place_all(never, only("nvme"));
  never.optimizer.clip_norm = 1e30;
  EXPECT_EQ(run(never), memory);
}

TEST_P(PlacementTest, SimdTargetsDoNotShow) {
  const Record memory = run(in_memory());
  const SimdTarget best = simd_target();
  for (const SimdTarget target : supported_simd_targets()) {
    set_simd_target(target);
    Config config = on_disk();
    place_all(config, shares(0, 0.5, 0.5));
    EXPECT_EQ(run(config), memory) << simd_target_name(target);
  }
  set_simd_target(best);
}

TEST_P(PlacementTest, AdversarialModeDoesNotShow) {
  const Record memory = run(in_memory());
  for (const auto& where :
       {only("device"), only("host"), only("nvme"), shares(0, 0.5, 0.5), shares(0.4, 0.3, 0.3)}) {
    for (const char* recompute : {"always", "never"}) {
      Config config = on_disk();
      place_all(config, where);
      config.train.recompute = recompute;
      config.compute.adversarial = true;
      EXPECT_EQ(run(with_least_budgets(config)), memory);
      config = on_disk();
      place_all(config, where);
      config.compute.adversarial = true;
      EXPECT_EQ(run(config), memory);
    }
  }
}

TEST_P(PlacementTest, ResumeGoesOnToTheSameBits) {
  Config whole = on_disk();
  whole.train.steps = 6;
  place_all(whole, shares(0, 0.5, 0.5));
  const Record straight = run(whole);
  for (const std::int64_t every : {-1, 1, 2}) {
    Config config = on_disk();
    place_all(config, shares(0, 0.5, 0.5));
    config.commit.every_steps = every;
    config.train.steps = 6;
    // Stop after two steps, as a signal does, then after three more, then run to the end; elsewhere each
    // time.
    TrainOptions options;
    std::vector<double> losses;
    std::uint64_t stop_at = 2;
    options.on_step = [&](const StepReport& report) { losses.push_back(report.loss); };
    options.should_stop = [&] { return losses.size() >= stop_at; };
    train(config, options);
    place_all(config, only("nvme"));
    options.resume = true;
    stop_at = 5;
    train(config, options);
    place_all(config, only("host"));
    stop_at = 100;
    const TrainResult result = train(config, options);
    EXPECT_EQ(losses, straight.losses);
    EXPECT_EQ(result.state_hash, straight.hash);
    EXPECT_EQ(result.eval_loss, straight.eval_loss);
  }
}

INSTANTIATE_TEST_SUITE_P(Cuts, PlacementTest,
                         testing::Values(Cut{6, 1, "bf16"}, Cut{2, 3, "bf16"}, Cut{3, 2, "fp32"},
                                         Cut{2, 3, "bf16", 0}, Cut{6, 1, "fp32", 0}, Cut{6, 1, "fp16"},
                                         Cut{2, 3, "fp16"}, Cut{2, 3, "fp16", 0}),
                         [](const auto& cut) {
                           return std::to_string(cut.param.micro_batch) + "x" +
                                  std::to_string(cut.param.micro_batches) + cut.param.compute +
                                  (cut.param.clip_norm > 0 ? "" : "unclipped");
                         });

}  // namespace
}  // namespace terrace::e2e
