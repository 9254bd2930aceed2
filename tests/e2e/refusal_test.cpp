// What a user gets wrong is refused before anything is made, by name, with what would do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "terrace/data.h"
#include "tests/e2e/program.h"

namespace terrace::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
namespace fs = std::filesystem;

class RefusalTest : public testing::Test {
 protected:
  RefusalTest() { config_ = small_on_disk(workspace_); }

  // One line of error that has `words`; no step was done, no store made.
  void expect_refused(const Config& config, const std::vector<std::string>& words,
                      bool resume = false) const {
    const bool there = fs::exists(config.store.path);
    const Outcome outcome = program_.run(config, resume);
    EXPECT_EQ(outcome.code, 1) << outcome;
    EXPECT_EQ(outcome.out, "");
    const std::size_t at = outcome.err.find("error: ");
    ASSERT_NE(at, std::string::npos) << outcome.err;
    for (const std::string& word : words) EXPECT_THAT(outcome.err.substr(at), HasSubstr(word));
    EXPECT_EQ(fs::exists(config.store.path), there) << outcome.err;
    if (!there && !config.tiers.nvme.empty() && fs::exists(config.tiers.nvme[0].path)) {
      EXPECT_TRUE(fs::is_empty(config.tiers.nvme[0].path)) << outcome.err;
    }
  }

  Workspace workspace_;
  TrainProgram program_{workspace_.path()};
  Config config_;
};

TEST_F(RefusalTest, WhatDoesNotFitSaysWhatWould) {
  const Record whole = run(small_in_memory(workspace_));
  config_.tiers.device_bytes = config_.tiers.host_bytes = 65536;
  const std::string file = write_config(workspace_.path(), config_);
  for (const char* command : {"plan", "train"}) {
    const Outcome outcome = run_program(workspace_.path(), {command, file});
    EXPECT_EQ(outcome.code, 1);
    const std::string text = outcome.out + outcome.err;
    EXPECT_THAT(text, AllOf(HasSubstr("does not fit"), HasSubstr("device"), HasSubstr("host"),
                            HasSubstr("the smallest budgets that would do:")));
    EXPECT_FALSE(fs::exists(config_.store.path));
    ASSERT_TRUE(bytes_of(text, "tiers.device =") && bytes_of(text, "tiers.host =")) << text;
    const std::uint64_t device_bytes = *bytes_of(text, "tiers.device ="),
                        host_bytes = *bytes_of(text, "tiers.host =");
    const auto planned = [&](std::uint64_t on_device, std::uint64_t on_host) {
      return run_program(workspace_.path(),
                         {"plan", file, "--set", "tiers.device=" + std::to_string(on_device), "--set",
                          "tiers.host=" + std::to_string(on_host)});
    };
    EXPECT_EQ(planned(device_bytes, host_bytes).code, 0) << planned(device_bytes, host_bytes);
    const std::uint64_t plenty = 64 << 20;
    for (const auto& [on_device, on_host] :
         {std::pair(device_bytes - 1, host_bytes), std::pair(device_bytes, host_bytes - 1),
          std::pair(device_bytes - 1, plenty), std::pair(plenty, host_bytes - 1)}) {
      const Outcome less = planned(on_device, on_host);
      EXPECT_EQ(less.code, 1) << on_device << " " << on_host << "\n" << less;
    }
  }
  // And the run itself, with them, gives the same numbers.
  EXPECT_EQ(run(with_least_budgets(config_)), whole);
  // A line that is too large is marked or named with its tier, and the budget stands beside it.
  const Outcome outcome = run_program(workspace_.path(), {"plan", file});
  EXPECT_THAT(outcome.out, HasSubstr("64 KiB"));
}

TEST_F(RefusalTest, AnotherModelIsRefusedByItsKey) {
  config_.train.steps = 2;
  run(config_);
  struct Change {
    const char* key;
    std::function<void(Config&)> apply;
  };
  const std::vector<Change> changes{
      {"model.layers", [](Config& c) { c.model.layers = 3; }},
      {"model.width", [](Config& c) { c.model.width = 64; }},
      {"model.heads", [](Config& c) { c.model.heads = 4; }},
      {"model.mlp_width", [](Config& c) { c.model.mlp_width = 64; }},
      {"model.vocabulary", [](Config& c) { c.model.vocabulary = 300; }},
      {"model.context", [](Config& c) { c.model.context = 16; }},
      {"model.tied_head", [](Config& c) { c.model.tied_head = false; }},
      {"model.init_std", [](Config& c) { c.model.init_std = 0.03; }},
      {"train.seed", [](Config& c) { c.train.seed = 2; }},
  };
  for (const Change& change : changes) {
    SCOPED_TRACE(change.key);
    Config other = config_;
    change.apply(other);
    expect_refused(other, {config_.store.path, change.key, "was written with"}, true);
  }
  // Other data under the same model.
  const std::string elsewhere = workspace_.path() + "/elsewhere";
  std::ofstream(workspace_.path() + "/other-text")
      << std::string(20000, 'x') + "\n" + std::string(20000, 'y');
  prepare_data({workspace_.path() + "/other-text"}, elsewhere, {});
  Config other = config_;
  other.data.path = elsewhere;
  other.train.steps = 3;
  expect_refused(other, {elsewhere}, true);
  // What may change does: where things lie, how much of them, how long the run is.
  other = config_;
  other.train.steps = 4;
  other.train.micro_batch = 8;
  other.optimizer.lr = 1e-4;
  other.placement.chunk_numel = 65536;
  place_all(other, only("host"));
  const Outcome outcome = program_.run(other, true);
  EXPECT_EQ(outcome.code, 0) << outcome;
}

TEST_F(RefusalTest, StoresThatAreNotThereOrAre) {
  expect_refused(config_, {"nothing to resume", config_.store.path}, true);
  Config without = small_in_memory(workspace_);
  expect_refused(without, {"store.path"}, true);
  config_.train.steps = 2;
  ASSERT_EQ(program_.run(config_, false).code, 0);
  expect_refused(config_, {config_.store.path, "already holds a store", "--resume"});
  EXPECT_EQ(program_.run(config_, true).code, 0);
  // The place of the store is a file.
  Config blocked = small_on_disk(workspace_);
  std::ofstream(blocked.store.path) << "not a folder";
  expect_refused(blocked, {blocked.store.path});
}

TEST_F(RefusalTest, Data) {
  config_.data.path = workspace_.path() + "/none";
  expect_refused(config_, {config_.data.path});
  config_.data.path = "";
  expect_refused(config_, {"data"});
  // Fewer rows than the data has tokens.
  config_.data.path = workspace_.path() + "/data";
  config_.model.vocabulary = 100;
  expect_refused(config_, {"vocabulary", "100", "256"});
  config_.model.vocabulary = 256;
  config_.model.context = 1 << 20;
  expect_refused(config_, {config_.data.path, "model.context"});
}

// A validation split that is shorter than one sample shows before the first step, or is no evaluation; never
// at the end.
TEST_F(RefusalTest, AValidationSplitTooShortForASample) {
  const std::string text = workspace_.path() + "/short-text";
  std::ofstream(text) << std::string(2000, 'x') + "\n" + std::string(10, 'y');
  prepare_data({text}, workspace_.path() + "/short", {.validation_share = 0.006});
  config_.data.path = workspace_.path() + "/short";
  config_.train.steps = 3;
  const Outcome outcome = program_.run(config_, false);
  if (outcome.code == 0) return;
  EXPECT_EQ(outcome.out, "") << "steps were done before";
  EXPECT_THAT(outcome.err, HasSubstr("validation"));
  EXPECT_FALSE(fs::exists(config_.store.path));
}

// Whatever was refused does not stand in the way of the corrected run.
TEST_F(RefusalTest, TheCorrectedRunNeedsNoHand) {
  Config wrong = config_;
  wrong.model.vocabulary = 100;
  EXPECT_EQ(program_.run(wrong, false).code, 1);
  const Outcome outcome = program_.run(config_, false);
  EXPECT_EQ(outcome.code, 0) << outcome;
}

TEST_F(RefusalTest, KeysAreRefusedWithTheNearest) {
  const std::string file = write_config(workspace_.path(), config_);
  std::string text = read_file(file);
  const std::size_t at = text.find("micro_batch ");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 12, "micro_bacth ");
  std::ofstream(file) << text;
  const Outcome outcome = run_program(workspace_.path(), {"train", file});
  EXPECT_EQ(outcome.code, 1);
  const auto line =
      std::to_string(1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
  EXPECT_THAT(outcome.err, AllOf(StartsWith("error: " + file + ":" + line), HasSubstr("micro_bacth"),
                                 HasSubstr("the nearest is train.micro_batch")));
  const std::string good = write_config(workspace_.path(), config_);
  for (const auto& [set, words] : std::vector<std::pair<std::string, std::string>>{
           {"trian.steps=1", "train.steps"},
           {"train.stepz=1", "the nearest is train.steps"},
           {"train.steps=\"many\"", "train.steps"},
           {"tiers.host=\"12 parsecs\"", "tiers.host"},
           {"placement.gradients=\"tape\"", "placement.gradients"},
           {"placement.gradients={host=0.5,nvme=0.6}", "placement.gradients"}}) {
    const Outcome refused = run_program(workspace_.path(), {"train", good, "--set", set});
    EXPECT_EQ(refused.code, 1) << set << "\n" << refused;
    EXPECT_THAT(refused.err, AllOf(StartsWith("error: "), HasSubstr(words)));
    EXPECT_EQ(std::count(refused.err.begin(), refused.err.end(), '\n'), 1) << refused.err;
  }
  EXPECT_FALSE(fs::exists(config_.store.path));
}

}  // namespace
}  // namespace terrace::e2e
