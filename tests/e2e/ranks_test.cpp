// Contract C1 over ranks: every stage, mesh and placement gives the losses, norms and final states of one
// rank with the same contributions, bit for bit, also where the ranks do not divide them.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "tests/e2e/rank_cuts.h"
#include "tests/e2e/tiny_run.h"

namespace terrace::e2e {
namespace {

constexpr Mesh kMeshes[] = {{2, "0"},
                            {3, "0"},
                            {4, "0"},
                            {2, "1"},
                            {3, "1"},
                            {4, "2"},
                            {2, "2"},
                            {3, "2"},
                            {2, "3"},
                            {3, "3"},
                            {4, "3"},
                            {4, "hybrid_shard", 2},
                            {3, "hybrid_shard", 3}};

class RanksTest : public testing::TestWithParam<Cut> {
 protected:
  Config cut(Config config) const {
    config.train.steps = 3;
    config.train.micro_batch = 3;
    config.train.micro_batches = GetParam().contributions;
    config.train.eval_batches = 2;
    config.precision.compute = GetParam().compute;
    config.optimizer.clip_norm = GetParam().clip_norm;
    config.placement.chunk_numel = 12288;
    config.compute.threads = 2;
    config.ranks.time_limit_s = 20;
    return config;
  }
  static Config on(Config config, const Mesh& mesh) {
    config.ranks.count = mesh.ranks;
    config.ranks.stage = mesh.stage;
    config.ranks.replicas = mesh.replicas;
    return config;
  }

  Workspace workspace_;
};

std::string name_of(const Mesh& mesh) {
  return std::to_string(mesh.ranks) + " ranks, stage " + mesh.stage;
}

TEST_P(RanksTest, EveryStageAndPlacementGivesTheBitsOfOneRank) {
  const Record one = run(cut(workspace_.config()));
  ASSERT_EQ(one.losses.size(), 3u);
  static const PlacementShares kPlaces[] = {
      {}, only("device"), only("host"), only("nvme"), shares(0.3, 0.3, 0.4)};
  std::size_t place = GetParam().contributions;
  for (const Mesh& mesh : kMeshes) {
    EXPECT_EQ(run(on(cut(workspace_.config()), mesh)), one) << name_of(mesh) << " in memory";
    Config config = on(cut(workspace_.config_on_disk()), mesh);
    if (const auto& where = kPlaces[++place % 5]; !where.automatic) place_all(config, where);
    config.commit.every_steps = place % 2 == 0 ? 1 : 2;
    EXPECT_EQ(run(config), one) << name_of(mesh) << ", place " << place % 5;
    if (place % 2 != 0) continue;
    config = on(cut(workspace_.config_on_disk()), mesh);
    place_all(config, kPlaces[3 + place % 4 / 2]);
    EXPECT_EQ(run(with_least_budgets(config)), one) << name_of(mesh) << ", least budgets";
  }
}

// A store knows tensors and ranges, never ranks: written at two, it goes on at any other number.
TEST_P(RanksTest, AStoreResumesAtAnyOtherNumberOfRanks) {
  const Record one = run(cut(workspace_.config()));
  static constexpr Mesh kNext[] = {{1, "3"}, {3, "3"}, {4, "1"}, {2, "0"}, {4, "hybrid_shard", 2}};
  for (const Mesh& next : kNext) {
    for (const char* where : {"nvme", "host"}) {
      Config config = on(cut(workspace_.config_on_disk()), {2, "3"});
      config.placement.optimizer_state = only(where);
      Config first = config;
      first.train.steps = 1;
      first.optimizer.schedule = "constant";
      config.optimizer.schedule = "constant";
      run(first);
      const Record rest = run(on(config, next), true);
      Config whole = cut(workspace_.config());
      whole.optimizer.schedule = "constant";
      const Record wanted = run(whole);
      EXPECT_EQ(rest.hash, wanted.hash) << name_of(next) << " " << where;
      ASSERT_EQ(rest.losses.size(), 2u);
      EXPECT_EQ(rest.losses[1], wanted.losses[2]) << name_of(next);
      EXPECT_EQ(rest.norms[1], wanted.norms[2]) << name_of(next);
    }
  }
}

// A number of contributions that all of these ranks divide, and one that three do not.
TEST(Ranks, TrainedAtTwoGoesOnAtOneThreeAndFour) {
  Workspace workspace;
  for (const std::uint32_t contributions : {12u, 4u}) {
    const auto small = [&](Config config, const Mesh& mesh, std::uint64_t steps) {
      config.train.steps = steps;
      config.train.micro_batch = 1;
      config.train.micro_batches = contributions;
      config.optimizer.schedule = "constant";
      config.ranks.count = mesh.ranks;
      config.ranks.stage = mesh.stage;
      config.ranks.time_limit_s = 20;
      return config;
    };
    const Record one = run(small(workspace.config(), {1, "3"}, 4));
    for (const Mesh& next : {Mesh{1, "3"}, Mesh{3, "3"}, Mesh{4, "3"}, Mesh{3, "1"}}) {
      const std::string what = name_of(next) + ", " + std::to_string(contributions) + " contributions";
      const Config disk = workspace.config_on_disk();
      run(small(disk, {2, "3"}, 2));
      const Record rest = run(small(disk, next, 4), true);
      EXPECT_EQ(rest.hash, one.hash) << what;
      ASSERT_EQ(rest.losses.size(), 2u) << what;
      for (std::size_t step = 0; step < 2; ++step) {
        EXPECT_EQ(rest.losses[step], one.losses[2 + step]) << what;
        EXPECT_EQ(rest.norms[step], one.norms[2 + step]) << what;
      }
    }
  }
}

struct Order {
  const char* reduce;
  const char* hybrid_reduce;
  std::vector<Mesh> meshes;  // that add up the same contributions
};

// Contributions added up before the fold: near the numbers of one rank, and the same bits under every stage
// and placement that adds up the same ones; those of one rank where nothing is to be added.
TEST_P(RanksTest, OtherOrdersOfReductionAreNearAndAlikeInEveryStageAndPlacement) {
  const Order orders[] = {
      {"last", "flat", {{2, "0"}, {2, "1"}}},
      {"last", "flat", {{3, "1"}, {3, "no_shard"}}},
      {"grouped", "flat", {{2, "3"}, {2, "0"}, {2, "1"}, {2, "shard_grad_op"}}},
      {"each", "hierarchical", {{4, "hybrid_shard", 2}}},
  };
  const Record one = run(cut(workspace_.config()));
  const double tolerance = GetParam().compute == std::string("fp32") ? 1e-5 : 4e-3;
  std::size_t place = GetParam().contributions;
  for (const Order& order : orders) {
    std::optional<Record> first;
    for (const Mesh& mesh : order.meshes) {
      const auto set = [&](Config config) {
        config = on(cut(std::move(config)), mesh);
        config.ranks.reduce = order.reduce;
        config.ranks.hybrid_reduce = order.hybrid_reduce;
        return config;
      };
      const std::string what = name_of(mesh) + ", " + order.reduce + ", " + order.hybrid_reduce;
      const Record memory = run(set(workspace_.config()));
      if (!first) first = memory;
      EXPECT_EQ(memory, *first) << what;
      Config config = set(workspace_.config_on_disk());
      place_all(config, ++place % 2 == 0 ? only("nvme") : shares(0.3, 0.3, 0.4));
      EXPECT_EQ(run(place % 3 == 0 ? with_least_budgets(config) : config), *first) << what << " on disk";
    }
    const std::uint32_t ranks = order.meshes[0].ranks;
    const bool adds =
        order.reduce == std::string("last") ? GetParam().contributions > ranks : GetParam().contributions > 1;
    if (!adds) {
      EXPECT_EQ(*first, one) << order.reduce;
      continue;
    }
    for (std::size_t step = 0; step < one.losses.size(); ++step) {
      EXPECT_NEAR(first->losses[step], one.losses[step], tolerance * one.losses[step]) << order.reduce;
      EXPECT_NEAR(first->norms[step], one.norms[step], 10 * tolerance * one.norms[step]) << order.reduce;
    }
  }
}

// fp16 whose first steps overflow on some contribution: every rank drops them and lowers the scale alike.
TEST(Ranks, AnOverflowOnAnyRankSkipsTheStepOnAll) {
  Workspace workspace;
  Config config = workspace.config();
  config.train.steps = 12;
  config.train.micro_batch = 2;
  config.train.micro_batches = 3;
  config.precision.compute = "fp16";
  config.precision.loss_scale_initial = 1u << 26;
  config.precision.loss_scale_hysteresis = 1;
  config.optimizer.warmup_steps = 0;
  std::vector<bool> dropped;
  const auto run_counted = [&](const Config& counted) {
    dropped.clear();
    Record record;
    TrainOptions options;
    options.on_step = [&](const StepReport& report) {
      record.losses.push_back(report.loss);
      record.norms.push_back(report.grad_norm);
      dropped.push_back(report.dropped);
    };
    record.hash = train(counted, options).state_hash;
    return record;
  };
  const Record one = run_counted(config);
  const std::vector<bool> wanted = dropped;
  EXPECT_TRUE(wanted.front()) << "the scale is chosen to overflow";
  EXPECT_FALSE(wanted.back()) << "and to come down to what works";
  for (const Mesh& mesh : kMeshes) {
    config.ranks.count = mesh.ranks;
    config.ranks.stage = mesh.stage;
    config.ranks.replicas = mesh.replicas;
    EXPECT_EQ(run_counted(config), one) << name_of(mesh);
    EXPECT_EQ(dropped, wanted) << name_of(mesh);
  }
}

// A step whose scale only ever overflows leaves every state as it was made.
TEST(Ranks, ADroppedStepLeavesEveryStateAsItWas) {
  Workspace workspace;
  Config config = workspace.config();
  config.train.micro_batches = 3;
  config.train.micro_batch = 2;
  config.precision.compute = "fp16";
  config.precision.loss_scale_initial = 1ull << 40;
  config.optimizer.warmup_steps = 0;
  const auto hash_after = [&](std::uint64_t steps) {
    config.train.steps = steps;
    return run(config).hash;
  };
  const std::string fresh = hash_after(1);
  for (const char* stage : {"0", "2", "3"}) {
    config.ranks.count = 3;
    config.ranks.stage = stage;
    EXPECT_EQ(hash_after(1), fresh);
    EXPECT_EQ(hash_after(3), fresh) << "three dropped steps";
  }
}

INSTANTIATE_TEST_SUITE_P(Cuts, RanksTest,
                         testing::Values(Cut{1, "bf16", 1}, Cut{2, "fp32", 1}, Cut{4, "bf16", 0},
                                         Cut{5, "bf16", 1}, Cut{7, "fp32", 0}, Cut{3, "fp16", 1}));

}  // namespace
}  // namespace terrace::e2e
