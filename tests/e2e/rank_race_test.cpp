// Two steps of four ranks with a store, commits and an evaluation: small enough for ThreadSanitizer.
#include <gtest/gtest.h>

#include "tests/e2e/tiny_run.h"
#include "tests/support/watchdog.h"

namespace terrace::e2e {
namespace {

struct Mesh {
  const char* stage;
  std::uint32_t replicas;
};

class RankRaceTest : public testing::TestWithParam<Mesh> {
 protected:
  static Config make(Config config) {
    config.model.layers = 1;
    config.model.width = 32;
    config.train.micro_batch = 1;
    config.train.micro_batches = 5;
    config.train.steps = 2;
    config.train.eval_batches = 2;
    config.placement.chunk_numel = 4096;
    config.compute.threads = 2;
    config.ranks.time_limit_s = 120;  // a sanitizer is slow
    if (config.tiers.nvme.empty()) return config;
    config.commit.every_steps = 1;
    config.ranks.count = 4;
    config.ranks.stage = GetParam().stage;
    config.ranks.replicas = GetParam().replicas;
    return config;
  }

  Workspace workspace_;
};

TEST_P(RankRaceTest, FourRanksGiveTheBitsOfOne) {
  const Record one = run(make(workspace_.config()));
  for (const PlacementShares& where : {shares(0, 0.5, 0.5), shares(0.4, 0.3, 0.3)}) {
    for (const double clip_norm : {1.0, 0.0}) {
      const Watchdog watchdog("four ranks", std::chrono::seconds(240));
      Config config = make(workspace_.config_on_disk());
      place_all(config, where);
      config.optimizer.clip_norm = clip_norm;
      const Record record = run(config);
      if (clip_norm > 0) {
        EXPECT_EQ(record, one);
      } else {
        EXPECT_EQ(record.losses[0], one.losses[0]);
      }
      Config more = config;  // with the store that is there
      more.train.steps = 3;
      EXPECT_EQ(run(more, true).losses.size(), 1u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, RankRaceTest,
                         testing::Values(Mesh{"0", 0}, Mesh{"1", 0}, Mesh{"2", 0}, Mesh{"3", 0},
                                         Mesh{"hybrid_shard", 2}),
                         [](const auto& mesh) { return "stage_" + std::string(mesh.param.stage); });

}  // namespace
}  // namespace terrace::e2e
