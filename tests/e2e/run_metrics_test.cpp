// The metrics of whole runs: they can be read, tell the very numbers, and after a resume tell each step once.
// And what a run holds stays flat.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/e2e/program.h"

namespace terrace::e2e {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::vector<nlohmann::json> lines_of(const std::string& path) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    lines.push_back(nlohmann::json::parse(line, nullptr, false));
    EXPECT_FALSE(lines.back().is_discarded()) << line;
  }
  return lines;
}

// Step -> validation loss, each told once.
std::map<std::uint64_t, double> evaluations_of(const std::string& path) {
  std::map<std::uint64_t, double> told;
  for (const auto& line : lines_of(path)) {
    if (line["event"] != "eval") continue;
    EXPECT_TRUE(told.emplace(line["step"], line["loss"]).second) << line;
  }
  return told;
}

class RunMetricsTest : public testing::Test {
 protected:
  std::string metrics_path() const { return workspace_.path() + "/metrics.jsonl"; }

  Workspace workspace_;
};

TEST_F(RunMetricsTest, LinesTellTheVeryNumbers) {
  for (const bool on_disk : {false, true}) {
    const Config config = on_disk ? small_on_disk(workspace_) : small_in_memory(workspace_);
    TrainOptions options;
    options.metrics_path = metrics_path();
    std::vector<StepReport> reports;
    std::vector<EvalReport> evaluations;
    options.on_step = [&](const StepReport& report) { reports.push_back(report); };
    options.on_eval = [&](const EvalReport& report) { evaluations.push_back(report); };
    Config told = config;
    told.train.eval_every = 5;
    const TrainResult result = train(told, options);
    const auto lines = lines_of(metrics_path());
    ASSERT_EQ(lines.size(), reports.size() + evaluations.size() + 1);
    ASSERT_EQ(evaluations.size(), 4u);  // 5, 10, 15 and the end
    std::size_t step = 0, evaluation = 0;
    for (const auto& line : lines) {
      if (line["event"] == "step") {
        const StepReport& report = reports.at(step++);
        EXPECT_EQ(line["step"], report.step);
        EXPECT_EQ(line["loss"].get<double>(), report.loss);
        EXPECT_EQ(line["grad_norm"].get<double>(), report.grad_norm);
        EXPECT_EQ(line["lr"].get<double>(), report.lr);
        EXPECT_EQ(line["tokens_per_s"].get<double>(), report.tokens_per_s);
        EXPECT_FALSE(line.contains("dropped"));
        EXPECT_GT(line["lanes"]["compute"].get<double>(), 0);
        EXPECT_EQ(line["lanes"].contains("nvme"), on_disk);
      } else if (line["event"] == "eval") {
        const EvalReport& report = evaluations.at(evaluation++);
        EXPECT_EQ(line["step"], report.step);
        EXPECT_EQ(line["loss"].get<double>(), report.loss);
      }
    }
    const auto& end = lines.back();
    EXPECT_EQ(end["event"], "end");
    EXPECT_EQ(end["state_hash"], result.state_hash);
    EXPECT_EQ(end["steps"], config.train.steps);
    EXPECT_EQ(end["steps"], result.steps);
    for (const char* what :
         {"device_bytes", "host_bytes", "nvme_bytes", "ledger_bytes", "locked_bytes", "resident_bytes"}) {
      ASSERT_TRUE(end["peak"].contains(what)) << what;
    }
    EXPECT_LE(end["peak"]["device_bytes"], config.tiers.device_bytes);
    EXPECT_LE(end["peak"]["host_bytes"], config.tiers.host_bytes);
    EXPECT_EQ(end["peak"]["nvme_bytes"] > 0, on_disk);
    // What the ledger says of the disk is what lies there, and more by nothing but the record and the
    // manifest.
    if (on_disk) {
      std::uint64_t held = 0;
      for (const auto& entry : fs::directory_iterator(config.tiers.nvme[0].path))
        held += fs::file_size(entry.path());
      EXPECT_LE(held, end["peak"]["nvme_bytes"].get<std::uint64_t>());
    }
  }
}

TEST_F(RunMetricsTest, WithoutEvaluationsNoneIsTold) {
  for (const bool split : {true, false}) {
    Config config = small_in_memory(workspace_);
    config.train.eval_every = 4;
    if (split) config.train.eval_batches = 0;
    if (!split) fs::remove(workspace_.path() + "/data/validation.tokens");
    TrainOptions options;
    options.metrics_path = metrics_path();
    int told = 0;
    options.on_eval = [&](const EvalReport&) { ++told; };
    const TrainResult result = train(config, options);
    EXPECT_TRUE(std::isnan(result.eval_loss));
    EXPECT_EQ(told, 0);
    EXPECT_TRUE(evaluations_of(metrics_path()).empty());
    EXPECT_EQ(lines_of(metrics_path()).size(), config.train.steps + 1);
  }
}

// Lines of steps that were never committed, an old end and a torn line go; no line is told twice or lost.
TEST_F(RunMetricsTest, AResumeCutsTheFileBackToItsCommit) {
  const Record whole = run(small_in_memory(workspace_));
  for (const std::int64_t every : {1, 3, 1000}) {
    Config config = small_on_disk(workspace_);
    config.commit.every_steps = every;
    TrainOptions options;
    options.metrics_path = metrics_path();
    std::size_t steps = 0;
    options.on_step = [&](const StepReport&) {
      if (++steps == 8) throw std::runtime_error("stopped as a kill does");
    };
    EXPECT_THROW(train(config, options), std::runtime_error);
    EXPECT_EQ(steps_told(metrics_path()), 8u);
    std::ofstream(metrics_path(), std::ios::app) << R"({"event":"step","step":9,"loss":1.)";
    options.on_step = {};
    options.resume = true;
    EXPECT_EQ(train(config, options).state_hash, whole.hash);
    EXPECT_EQ(record_of_metrics(metrics_path()), whole) << every;
    // A resume of what has ended: the same file, its end told anew.
    EXPECT_EQ(train(config, options).state_hash, whole.hash);
    EXPECT_EQ(record_of_metrics(metrics_path()), whole) << every;
  }
}

// A file that is no metrics is left as it is; so is the store's commit.
TEST_F(RunMetricsTest, AFileThatIsNoMetricsIsRefusedAndKept) {
  Config config = small_on_disk(workspace_);
  const Record whole = run(config);
  std::ofstream(metrics_path()) << "my notes\n";
  TrainOptions options;
  options.metrics_path = metrics_path();
  options.resume = true;
  EXPECT_THROW(train(config, options), std::exception);
  EXPECT_EQ(read_file(metrics_path()), "my notes\n");
  options.metrics_path = workspace_.path() + "/nowhere/metrics.jsonl";
  EXPECT_THROW(train(config, options), std::exception);
  options.metrics_path.clear();
  EXPECT_EQ(train(config, options).state_hash, whole.hash);
}

// A mistake in the command must not leave a store that stands in the way of the next one.
TEST_F(RunMetricsTest, MetricsThatCannotBeWrittenLeaveNoStore) {
  const Config config = small_on_disk(workspace_);
  TrainOptions options;
  options.metrics_path = workspace_.path() + "/nowhere/metrics.jsonl";
  EXPECT_THROW(train(config, options), std::exception);
  EXPECT_FALSE(fs::exists(config.store.path));
  EXPECT_TRUE(fs::is_empty(config.tiers.nvme[0].path));
  options.metrics_path = metrics_path();
  EXPECT_EQ(train(config, options).state_hash, run(small_in_memory(workspace_)).hash);
}

// Every evaluation of an undisturbed run is told exactly once by runs that stop, or die, just before it.
TEST_F(RunMetricsTest, NoEvaluationIsLostBetweenTwoRuns) {
  Config in_memory = small_in_memory(workspace_);
  in_memory.train.eval_every = 2;
  TrainOptions options;
  options.metrics_path = metrics_path();
  const TrainResult whole = train(in_memory, options);
  const auto wanted = evaluations_of(metrics_path());
  ASSERT_EQ(wanted.size(), 8u);

  for (const bool dies : {false, true}) {
    Config config = small_on_disk(workspace_);
    config.train.eval_every = 2;
    config.commit.every_steps = 1;
    std::uint64_t at = 0;
    int steps = 0;  // of this part
    TrainOptions part;
    part.metrics_path = metrics_path();
    part.on_step = [&](const StepReport& report) {
      at = report.step;
      // A step is committed inside the next: two steps make a commit.
      if (dies && ++steps == 2) throw std::runtime_error("died between the commit and the evaluation");
    };
    part.should_stop = [&] { return !dies; };
    TrainResult result;
    while (at < config.train.steps) {
      steps = 0;
      try {
        result = train(config, part);
      } catch (const std::runtime_error&) {
      }
      part.resume = true;
    }
    part.on_step = {};
    part.should_stop = {};
    result = train(config, part);
    EXPECT_EQ(evaluations_of(metrics_path()), wanted) << (dies ? "died" : "stopped");
    EXPECT_EQ(result.eval_loss, whole.eval_loss) << (dies ? "died" : "stopped");
    EXPECT_TRUE(result.last_loss == whole.last_loss || std::isnan(result.last_loss)) << result.last_loss;
    EXPECT_EQ(result.state_hash, whole.state_hash);
  }
}

// Of this process, now.
struct Held {
  std::uint64_t resident_bytes = 0;
  std::uint64_t heap_bytes = 0;  // in use; 0 under a sanitizer's allocator
  std::size_t descriptors = 0;
  std::size_t threads = 0;
};

Held held_now() {
  Held held;
  std::ifstream statm("/proc/self/statm");
  std::uint64_t size_pages = 0, resident_pages = 0;
  statm >> size_pages >> resident_pages;
  held.resident_bytes = resident_pages * 4096;
  held.heap_bytes = ::mallinfo2().uordblks + ::mallinfo2().hblkhd;
  const auto entries = [](const char* folder) {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
  };
  held.descriptors = entries("/proc/self/fd");
  held.threads = entries("/proc/self/task");
  return held;
}

TEST_F(RunMetricsTest, MemoryDescriptorsAndThreadsStayFlat) {
  for (const char* queue : {"uring", "threads"}) {
    Config config = small_on_disk(workspace_);
    config.io.queue = queue;
    config.train.steps = 600;
    config.train.micro_batches = 2;
    config.train.eval_every = 10;
    config.commit.every_steps = 10;
    place_all(config, shares(0, 0.5, 0.5));
    Held warm, most;
    TrainOptions options;
    options.metrics_path = metrics_path();
    options.on_step = [&](const StepReport& report) {
      const Held held = held_now();
      if (report.step <= 100) {
        warm.resident_bytes = std::max(warm.resident_bytes, held.resident_bytes);
        warm.heap_bytes = std::max(warm.heap_bytes, held.heap_bytes);
        warm.descriptors = std::max(warm.descriptors, held.descriptors);
        warm.threads = std::max(warm.threads, held.threads);
      }
      most.resident_bytes = std::max(most.resident_bytes, held.resident_bytes);
      most.heap_bytes = std::max(most.heap_bytes, held.heap_bytes);
      most.descriptors = std::max(most.descriptors, held.descriptors);
      most.threads = std::max(most.threads, held.threads);
    };
    try {
      train(config, options);
    } catch (const std::exception& error) {
      if (std::string(error.what()).find("io_uring_setup") == std::string::npos) throw;
      std::cout << "without io_uring: " << error.what() << "\n";
      continue;
    }
    EXPECT_EQ(most.descriptors, warm.descriptors) << queue;
    EXPECT_EQ(most.threads, warm.threads) << queue;
    // What threads keep of each other's freed blocks comes and goes; 300 bytes a step would show.
    EXPECT_LE(most.heap_bytes, warm.heap_bytes + (128 << 10)) << queue;
    EXPECT_TRUE(kSanitized || most.resident_bytes <= warm.resident_bytes + (16 << 20))
        << queue << ": " << warm.resident_bytes << " grew to " << most.resident_bytes;
  }
  // Runs one after the other leave nothing either.
  const Held before = held_now();
  for (int i = 0; i < 5; ++i) run(small_on_disk(workspace_));
  const Held after = held_now();
  EXPECT_EQ(after.descriptors, before.descriptors);
  EXPECT_EQ(after.threads, before.threads);
}

}  // namespace
}  // namespace terrace::e2e
