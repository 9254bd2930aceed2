// Tensors that no contribution reaches in some steps: all ranks that hold one agree that it rests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/engine/known_gradients.h"
#include "tests/support/error_of.h"
#include "tests/support/temp_dir.h"

namespace terrace::engine_test {
namespace {

// In steps 1 and 3 nothing reaches "never" and "odd.bias" (a tensor of one block with others), in step 2 one
// contribution of one rank reaches "some", in the last step all reach all.
bool reaches(const std::string& tensor, std::uint64_t step, std::uint32_t contribution) {
  if (tensor == "never") return false;
  if (step == 4 || tensor == "all" || tensor == "all.bias") return true;
  if (tensor == "some") return step == 2 && contribution == 1;
  if (tensor == "turns") return contribution == step % 3;  // another rank each step
  return step == 2;                                        // odd
}

KnownModel model() {
  return {{{{"all", 5003}, {"some", 4099}, {"odd.bias", 7, false}},
           {{"never", 8192}, {"turns", 12289}},
           {{"odd", 9001}, {"all.bias", 31, false}}},
          reaches};
}

Hyper hyper_of(const KnownModel::Tensor& tensor) {
  return {1, tensor.decay ? 0.25 : 0};
}

constexpr Mesh kMeshes[] = {
    {2, "3"}, {3, "3"}, {4, "3"}, {2, "0"}, {3, "0"}, {3, "1"}, {4, "2"}, {4, "hybrid_shard", 2}, {5, "3"}};

TEST(UntouchedTensors, RestOnEveryRank) {
  Config config = known_config();
  const auto exact = reference_run(config, model(), 4, hyper_of);
  const KnownResult one = run_known(config, model(), 1, 4);
  expect_near(one, exact, "one rank");
  EXPECT_EQ(one.tensors.at("never").steps, 0u);
  EXPECT_EQ(one.tensors.at("some").steps, 2u);
  EXPECT_EQ(one.tensors.at("turns").steps, 4u);
  EXPECT_EQ(one.tensors.at("odd.bias").steps, 2u);
  for (const Mesh& mesh : kMeshes) {
    Config ranked = on(config, mesh);
    EXPECT_EQ(run_known(ranked, model(), 1, 4), one) << mesh.ranks << " ranks, stage " << mesh.stage;
    ranked.compute.adversarial = true;
    EXPECT_EQ(run_known(ranked, model(), 1, 4), one) << mesh.ranks << " ranks, adversarial";
  }
}

// A rank without a contribution has nothing to say about what a step touched.
TEST(UntouchedTensors, RestWhereARankHasNoContribution) {
  Config config = known_config();
  config.train.micro_batches = 2;
  const KnownResult one = run_known(config, model(), 1, 4);
  expect_near(one, reference_run(config, model(), 4, hyper_of), "one rank");
  for (const char* stage : {"0", "3"}) {
    config.ranks.count = 4;
    config.ranks.stage = stage;
    EXPECT_EQ(run_known(config, model(), 1, 4), one) << stage;
  }
}

TEST(UntouchedTensors, RestAcrossAResumeOnDisk) {
  Config config = known_config();
  const KnownResult whole = run_known(config, model(), 1, 4);
  const TempDir folder;
  std::filesystem::create_directories(folder.file("nvme"));
  config.store.path = folder.file("store");
  config.tiers.nvme = {{folder.file("nvme"), 64u << 20}};
  config.placement.optimizer_state = {false, 0, 0, 1};
  config.commit.every_steps = 1;
  config.ranks.count = 3;
  run_known(config, model(), 1, 2);
  config.ranks.count = 2;
  const KnownResult rest = run_known(config, model(), 3, 4, true);
  EXPECT_EQ(rest.tensors, whole.tensors);
  EXPECT_EQ(rest.hash, whole.hash);
}

// Without a verdict nothing joins the ranks before an update.
TEST(UntouchedTensors, WantAVerdictWithSeveralRanks) {
  Config config = known_config();
  config.optimizer.clip_norm = 0;
  expect_near(run_known(config, model(), 1, 4), reference_run(config, model(), 4, hyper_of), "one rank");
  config.ranks.count = 2;
  EXPECT_THAT(
      error_of([&] { run_known(config, model(), 1, 1); }),
      testing::HasSubstr("a step may leave parameters without a gradient, and with several ranks these "
                         "agree on which with the verdict: wanted optimizer.clip_norm above 0 (1e30 "
                         "never clips), got 0"));
}

}  // namespace
}  // namespace terrace::engine_test
