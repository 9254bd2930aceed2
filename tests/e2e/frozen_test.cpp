// A transformer with frozen tensors, tied embedding included: the same bits on every mesh, saved, resumed and
// sampled from.
#include <gtest/gtest.h>

#include "tests/e2e/tiny_run.h"

namespace terrace::e2e {
namespace {

class FrozenTransformer : public testing::TestWithParam<std::vector<const char*>> {
 protected:
  Config frozen(Config config) const {
    for (const char* match : GetParam()) config.optimizer.groups.push_back({match, 1, {}, true});
    config.train.steps = 3;
    config.train.micro_batches = 2;
    config.train.micro_batch = 3;
    config.optimizer.schedule = "constant";
    config.compute.threads = 2;
    config.ranks.time_limit_s = 20;
    return config;
  }

  Workspace workspace_;
};

TEST_P(FrozenTransformer, GivesTheSameBitsOnEveryMesh) {
  const Record one = run(frozen(workspace_.config()));
  EXPECT_NE(one.hash, run([&] {
                        Config config = frozen(workspace_.config());
                        config.optimizer.groups.clear();
                        return config;
                      }())
                          .hash);
  for (const auto& [ranks, stage] :
       {std::pair{2u, "0"}, {3u, "1"}, {4u, "2"}, {3u, "3"}, {4u, "hybrid_shard"}}) {
    Config config = frozen(workspace_.config());
    config.ranks.count = ranks;
    config.ranks.stage = stage;
    EXPECT_EQ(run(config), one) << ranks << " ranks, stage " << stage;
  }
}

TEST_P(FrozenTransformer, IsSavedResumedAndSampledFrom) {
  const Record one = run(frozen(workspace_.config()));
  Config config = frozen(workspace_.config_on_disk());
  config.placement.optimizer_state = shares(0, 0.5, 0.5);
  config.ranks.count = 2;
  Config first = config;
  first.train.steps = 2;
  run(first);
  config.ranks.count = 3;
  EXPECT_EQ(run(config, true).hash, one.hash);
  SampleOptions options;
  options.tokens = 8;
  options.temperature = 0;
  EXPECT_FALSE(sample_text(config, options).empty());
}

INSTANTIATE_TEST_SUITE_P(Sets, FrozenTransformer,
                         testing::Values(std::vector<const char*>{"wte.weight"},
                                         std::vector<const char*>{"w?e.weight", "h.0.*", "h.1.*"},
                                         std::vector<const char*>{"*.bias"}));

}  // namespace
}  // namespace terrace::e2e
