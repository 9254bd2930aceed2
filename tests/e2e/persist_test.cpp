// Contract C1 where small units stay whole on every rank: the bits are those of one rank.
#include <gtest/gtest.h>

#include "src/train/setup.h"
#include "tests/e2e/rank_cuts.h"
#include "tests/e2e/tiny_run.h"
#include "tests/support/watchdog.h"

namespace terrace::e2e {
namespace {

constexpr Mesh kMeshes[] = {{2, "3"}, {3, "3"}, {4, "3"}, {4, "hybrid_shard", 2}};
// The final norm's tensors have 64 elements, the largest of all 16384.
constexpr std::uint64_t kHead = 65, kAll = 16385;

Config on(Config config, const Mesh& mesh, std::uint64_t below) {
  config.ranks.count = mesh.ranks;
  config.ranks.stage = mesh.stage;
  config.ranks.replicas = mesh.replicas;
  config.ranks.persist_below_numel = below;
  return config;
}

std::string name_of(const Mesh& mesh, std::uint64_t below) {
  return std::to_string(mesh.ranks) + " ranks, stage " + mesh.stage + ", below " + std::to_string(below);
}

class PersistTest : public testing::TestWithParam<Cut> {
 protected:
  Config cut(Config config) const {
    config.train.steps = 3;
    config.train.micro_batch = 3;
    config.train.micro_batches = GetParam().contributions;
    config.train.eval_batches = 2;
    config.precision.compute = GetParam().compute;
    config.optimizer.clip_norm = GetParam().clip_norm;
    config.optimizer.schedule = "constant";
    config.placement.chunk_numel = 8192;
    config.compute.threads = 2;
    config.ranks.time_limit_s = 20;
    return config;
  }

  Workspace workspace_;
};

TEST_P(PersistTest, EveryPlacementGivesTheBitsOfOneRank) {
  const Record one = run(cut(workspace_.config()));
  ASSERT_EQ(one.losses.size(), 3u);
  static const PlacementShares kPlaces[] = {only("device"), only("host"), only("nvme"),
                                            shares(0.3, 0.3, 0.4)};
  for (const Mesh& mesh : kMeshes) {
    for (const std::uint64_t below : {kHead, kAll}) {
      const Watchdog watchdog(name_of(mesh, below), std::chrono::seconds(240));
      for (const PlacementShares& where : kPlaces) {
        Config config = on(cut(workspace_.config_on_disk()), mesh, below);
        place_all(config, where);
        config.commit.every_steps = where.host > 0 ? 2 : 1;
        EXPECT_EQ(run(config), one) << name_of(mesh, below) << ", nvme " << where.nvme;
      }
      Config config = on(cut(workspace_.config_on_disk()), mesh, below);
      EXPECT_EQ(run(with_least_budgets(config)), one) << name_of(mesh, below) << ", least budgets";
    }
  }
}

// The store knows nothing of it.
TEST_P(PersistTest, AStoreResumesWithAnyOtherSetting) {
  const Record wanted = run(cut(workspace_.config()));
  struct Pair {
    Mesh first, next;
    std::uint64_t first_below, next_below;
  };
  static constexpr Pair kPairs[] = {{{3, "3"}, {2, "3"}, kAll, 0},
                                    {{2, "3"}, {4, "hybrid_shard", 2}, 0, kHead},
                                    {{4, "hybrid_shard", 2}, {1, "3"}, kHead, kAll},
                                    {{2, "3"}, {3, "2"}, kHead, kAll}};
  for (const Pair& pair : kPairs) {
    const Watchdog watchdog(name_of(pair.next, pair.next_below), std::chrono::seconds(120));
    Config config = on(cut(workspace_.config_on_disk()), pair.first, pair.first_below);
    config.train.steps = 1;
    run(config);
    config = on(config, pair.next, pair.next_below);
    config.train.steps = 3;
    const Record rest = run(config, true);
    EXPECT_EQ(rest.hash, wanted.hash) << name_of(pair.next, pair.next_below);
    ASSERT_EQ(rest.losses.size(), 2u);
    EXPECT_EQ(rest.losses[1], wanted.losses[2]) << name_of(pair.next, pair.next_below);
    EXPECT_EQ(rest.norms[1], wanted.norms[2]) << name_of(pair.next, pair.next_below);
  }
}

INSTANTIATE_TEST_SUITE_P(Cuts, PersistTest,
                         testing::Values(Cut{1, "bf16", 1}, Cut{4, "fp32", 1}, Cut{5, "bf16", 0}));

// What the thresholds of these tests keep whole.
TEST(Persist, TheThresholdCountsTheElementsOfTensors) {
  Workspace workspace;
  const ModelShape model = model_shape(workspace.config());
  const auto kept = [&](std::uint64_t below) {
    const Config config = on(workspace.config(), {2, "3"}, below);
    const Plan plan = make_plan(plan_request(config, model, config.placement.chunk_numel, 0));
    std::size_t units = 0;
    for (std::uint32_t u = 0; u < model.units.size(); ++u) units += plan.ranks.keeps_whole(u) ? 1 : 0;
    EXPECT_EQ(plan.ranks.keeps_whole(static_cast<std::uint32_t>(model.units.size()) - 1), units > 0);
    return units;
  };
  EXPECT_EQ(kept(0), 0u);
  EXPECT_EQ(kept(1), 0u);
  EXPECT_EQ(kept(kHead - 1), 0u);
  EXPECT_EQ(kept(kHead), 1u);
  EXPECT_EQ(kept(kAll - 1), 1u);
  EXPECT_EQ(kept(kAll), model.units.size());
}

}  // namespace
}  // namespace terrace::e2e
