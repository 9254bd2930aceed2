// A step whose gradient is not finite is dropped: it is said, nothing is updated, the count goes on and the
// schedule does not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <algorithm>

#include <cmath>
#include <sstream>

#include "io/extent_store.h"
#include "src/base/log.h"
#include "src/train/setup.h"
#include "terrace/error.h"
#include "terrace/store.h"
#include "tests/e2e/program.h"

namespace terrace::e2e {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kSteps = 9, kFinite = 1;

// What the library logs while this lives.
class LogCapture {
 public:
  LogCapture() : sink_(std::make_shared<spdlog::sinks::ostream_sink_mt>(text_)) {
    logger()->sinks().push_back(sink_);
  }
  ~LogCapture() { logger()->sinks().pop_back(); }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  spdlog::sink_ptr sink_;
};

class VerdictTest : public testing::Test {
 protected:
  // The first update throws the weights so far that no later gradient is finite.
  static void diverge(Config& config, std::uint64_t steps) {
    config.train.steps = steps;
    config.train.eval_batches = 0;
    config.optimizer.lr = 1e30;
    config.optimizer.schedule = "linear";
    config.optimizer.warmup_steps = 0;
    config.optimizer.min_lr_ratio = 0.5;
  }

  // Every step's report, the hash at the end and what was logged.
  struct Told {
    std::vector<StepReport> steps;
    std::string hash, log;
  };
  static Told train_and_tell(const Config& config, bool resume = false, std::uint64_t stop_at = 1000) {
    Told told;
    const LogCapture log;
    TrainOptions options;
    options.resume = resume;
    options.on_step = [&](const StepReport& report) { told.steps.push_back(report); };
    options.should_stop = [&] { return told.steps.back().step >= stop_at; };
    told.hash = train(config, options).state_hash;
    told.log = log.text();
    return told;
  }

  // The state after `kFinite` steps of the same schedule.
  std::string hash_before_the_drops() const {
    Config config = small_in_memory(workspace_);
    diverge(config, kSteps);
    return train_and_tell(config, false, kFinite).hash;
  }

  Workspace workspace_;
};

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_F(VerdictTest, DroppedStepsAreToldAndChangeNothing) {
  const std::string before = hash_before_the_drops();
  const auto expect_dropped = [&](const Told& told, const Config& config) {
    ASSERT_EQ(told.steps.size(), kSteps);
    EXPECT_EQ(told.hash, before);
    for (const StepReport& step : told.steps) {
      EXPECT_EQ(step.dropped, step.step > kFinite) << step.step;
      EXPECT_EQ(std::isfinite(step.grad_norm), step.step <= kFinite);
      EXPECT_EQ(step.lr, schedule_of(config).at(std::min<std::uint64_t>(step.step - 1, kFinite)))
          << "dropped steps do not advance it";
    }
    EXPECT_EQ(count_of(told.log, "the gradient is not finite"), kSteps - kFinite) << told.log;
    EXPECT_THAT(told.log, HasSubstr("step 2: the gradient is not finite"));
  };
  Config config = small_in_memory(workspace_);
  diverge(config, kSteps);
  expect_dropped(train_and_tell(config), config);
  for (const auto& where : {only("device"), only("host"), only("nvme"), shares(0.3, 0.3, 0.4)}) {
    for (const std::int64_t every : {0, 1, 4}) {
      for (const bool adversarial : {false, true}) {
        config = small_on_disk(workspace_);
        diverge(config, kSteps);
        place_all(config, where);
        config.commit.every_steps = every;
        config.compute.adversarial = adversarial;
        expect_dropped(train_and_tell(config), config);
        if (every == 0) continue;
        const StoreListing listing = list_store(config.store.path);
        EXPECT_EQ(listing.committed_step, kSteps);
        for (const auto& chunk : listing.chunks) {
          ASSERT_TRUE(chunk.committed);
          for (const auto& segment : chunk.segments) EXPECT_EQ(segment.steps, kFinite) << segment.tensor;
        }
      }
    }
  }
}

// The commit of a dropped step is a commit: the next run goes on behind it.
TEST_F(VerdictTest, ACommitOfADroppedStepIsResumed) {
  const std::string before = hash_before_the_drops();
  for (const std::int64_t every : {1, 3, 1000}) {
    Config config = small_on_disk(workspace_);
    diverge(config, kSteps);
    config.commit.every_steps = every;
    EXPECT_EQ(train_and_tell(config, false, 4).hash, before);
    ASSERT_EQ(list_store(config.store.path).committed_step, 4u);
    const Told told = train_and_tell(config, true);
    ASSERT_EQ(told.steps.size(), kSteps - 4);
    EXPECT_EQ(told.steps.front().step, 5u);
    EXPECT_EQ(told.steps.front().lr, schedule_of(config).at(kFinite)) << "dropped steps do not advance it";
    EXPECT_EQ(told.hash, before);
    EXPECT_TRUE(verify_store(config.store.path).whole());
  }
}

// Without clipping no verdict stands before the updates: the run stops, and what it leaves is the commit
// before.
TEST_F(VerdictTest, WithoutClippingTheRunStopsBeforeItsCommit) {
  for (const auto& where : {only("host"), only("nvme"), shares(0.3, 0.3, 0.4)}) {
    Config config = small_on_disk(workspace_);
    diverge(config, kSteps);
    place_all(config, where);
    config.optimizer.clip_norm = 0;
    config.commit.every_steps = 1;
    try {
      train(config, {});
      FAIL() << "a gradient that is not finite went unnoticed";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("the gradient is not finite"));
      EXPECT_THAT(error.what(), HasSubstr("optimizer.clip_norm"));
    }
    EXPECT_EQ(list_store(config.store.path).committed_step, kFinite);
    EXPECT_TRUE(verify_store(config.store.path).whole());
    config.optimizer.clip_norm = 1e30;  // waits for the verdict and never clips
    EXPECT_EQ(train_and_tell(config, true).steps.size(), kSteps - kFinite);
  }
}

// The program goes on to the end, says what it dropped, and its metrics can be read.
TEST_F(VerdictTest, TheProgramSaysSo) {
  Config config = small_on_disk(workspace_);
  diverge(config, kSteps);
  const TrainProgram program(workspace_.path());
  const Outcome outcome = program.run(config, false);
  ASSERT_EQ(outcome.code, 0) << outcome;
  EXPECT_EQ(count_of(outcome.out, "dropped"), kSteps - kFinite) << outcome.out;
  const std::string metrics = read_file(program.metrics_path());
  EXPECT_EQ(count_of(metrics, "\"dropped\":true"), kSteps - kFinite) << metrics;
  EXPECT_EQ(count_of(metrics, "\"grad_norm\":null"), kSteps - kFinite);
  EXPECT_EQ(record_of_metrics(program.metrics_path()).hash, hash_before_the_drops());
}

}  // namespace
}  // namespace terrace::e2e
