// Learning: a model that sees 100 lines often enough knows them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include "terrace/data.h"
#include "terrace/train.h"
#include "tests/e2e/tiny_run.h"
#include "tests/support/temp_dir.h"

namespace terrace::e2e {
namespace {

// A hundred lines that no rule but memory gives.
std::string hundred_lines() {
  static constexpr const char* kWho[] = {"the heron", "a miller", "the pilot", "an otter", "the clerk",
                                         "a mason",   "the fox",  "a weaver",  "the nun",  "an owl"};
  static constexpr const char* kDoes[] = {"counts", "buries", "mends", "paints",
                                          "weighs", "hides",  "sells", "keeps"};
  static constexpr const char* kWhat[] = {"stones", "lamps", "letters", "ropes", "bells", "coins", "maps"};
  std::string text;
  unsigned state = 2024;
  const auto next = [&](unsigned below) {
    state = state * 1664525u + 1013904223u;
    return (state >> 16) % below;
  };
  for (int line = 0; line < 100; ++line) {
    text += std::string(kWho[next(10)]) + " " + kDoes[next(8)] + " " + std::to_string(next(1000)) + " " +
            kWhat[next(7)] + ".\n";
  }
  return text;
}

TEST(Overfit, AHundredLinesAreLearntByHeart) {
  const TempDir folder;
  const std::string text = hundred_lines();
  ASSERT_EQ(std::count(text.begin(), text.end(), '\n'), 100);
  std::ofstream(folder.file("text")) << text;
  prepare_data({folder.file("text")}, folder.file("data"), {.validation_share = 0});

  Config config;
  config.model.layers = 2;
  config.model.width = 96;
  config.model.heads = 4;
  config.model.context = 128;
  config.model.init_std = 0.08;
  config.data.path = folder.file("data");
  config.train.steps = 150;
  config.train.micro_batch = 12;
  config.optimizer.lr = 6e-3;
  config.optimizer.warmup_steps = 20;
  config.optimizer.weight_decay = 0;
  config.tiers.device_bytes = config.tiers.host_bytes = 1u << 30;  // many cores bring memory of their own
  config.placement.chunk_numel = 65536;
  config.compute.adversarial = std::getenv("TERRACE_TEST_ADVERSARIAL") != nullptr;

  // The loss of an epoch: what the model says of every sample before it is trained on it once more.
  const std::uint64_t windows = (text.size() - 1) / config.model.context;
  const std::uint64_t epoch = (windows + config.train.micro_batch - 1) / config.train.micro_batch;
  std::vector<double> losses;
  TrainOptions options;
  options.on_step = [&](const StepReport& report) { losses.push_back(report.loss); };
  const std::string hash = train(config, options).state_hash;
  ASSERT_EQ(losses.size(), config.train.steps);
  EXPECT_GT(losses.front(), 4.5);
  double worst = 0;
  for (std::size_t i = losses.size() - epoch; i < losses.size(); ++i) worst = std::max(worst, losses[i]);
  EXPECT_LT(worst, 0.1);

  // Again, elsewhere: the same numbers.
  std::vector<double> first = losses;
  losses.clear();
  config.train.recompute = "always";
  place_all(config, shares(0.5, 0.5, 0));
  options.should_stop = [&] { return losses.size() >= 20; };
  train(config, options);
  first.resize(losses.size());
  EXPECT_EQ(losses, first);
}

}  // namespace
}  // namespace terrace::e2e
