// A transformer whose sizes fit nothing, whole: units of a fraction of a block, on more ranks than blocks.
#include <gtest/gtest.h>

#include <fstream>

#include "terrace/data.h"
#include "tests/e2e/tiny_run.h"

namespace terrace::e2e {
namespace {

Config odd_config(Workspace& workspace, bool tied) {
  std::ofstream text(workspace.path() + "/odd.txt");
  for (int i = 0; i < 6000; ++i) text << "abcdefghijklmnopqrstuvwxyz .,;:!?\n"[(i + i / 7) % 34];
  text.close();
  PrepareOptions options;
  options.tokenizer = "chars";
  prepare_data({workspace.path() + "/odd.txt"}, workspace.path() + "/odd", options);
  Config config = workspace.config();
  config.data.path = workspace.path() + "/odd";
  config.model.layers = 2;
  config.model.width = 6;
  config.model.heads = 2;
  config.model.vocabulary = 39;
  config.model.context = 7;
  config.model.tied_head = tied;
  config.train.steps = 3;
  config.train.micro_batch = 3;
  config.train.micro_batches = 3;
  config.placement.chunk_numel = 4096;
  config.compute.threads = 2;
  config.ranks.time_limit_s = 20;
  return config;
}

TEST(OddSizes, ATinyTransformerGivesTheSameBitsOnAnyNumberOfRanks) {
  for (const bool tied : {true, false}) {
    Workspace workspace;
    Config config = odd_config(workspace, tied);
    const Record one = run(config);
    ASSERT_EQ(one.losses.size(), 3u);
    for (const auto& [ranks, stage] : {std::pair{2u, "3"}, {3u, "1"}, {4u, "0"}, {5u, "3"}, {5u, "2"}}) {
      config.ranks.count = ranks;
      config.ranks.stage = stage;
      EXPECT_EQ(run(config), one) << ranks << " ranks, stage " << stage;
    }
  }
}

}  // namespace
}  // namespace terrace::e2e
