// Ranks that are processes: what each is started with, and what they decide together.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/train/batches.h"
#include "terrace/data.h"
#include "tests/e2e/mpi_job.h"

namespace terrace::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

class MpiConfigTest : public MpiJobTest {
 protected:
  void expect_nothing_made(const Config& config) const {
    EXPECT_FALSE(fs::exists(config.store.path));
    for (const NvmePath& path : config.tiers.nvme) EXPECT_TRUE(fs::is_empty(path.path)) << path.path;
  }
  // A job of processes, each with its own configuration and arguments, that is refused for `differences`.
  void expect_unlike(const std::vector<Config>& configs, const std::vector<Arguments>& more,
                     const std::string& differences) const {
    expect_refused(mixed_job(configs, more),
                   HasSubstr("the processes of a run were not given the same: " + differences));
    for (const Config& config : configs) expect_nothing_made(config);
  }
  // A folder with the same data.
  std::string copied_data(const std::string& name) const {
    const std::string folder = workspace_.path() + "/" + name;
    fs::copy(workspace_.config().data.path, folder);
    return folder;
  }
};

TEST_F(MpiConfigTest, KeysAndPlacesThatDifferAreRefused) {
  const Config config = on_disk();
  Config keys = config;
  keys.train.micro_batch = 3;
  keys.ranks.stage = "2";
  keys.optimizer.beta2 = 0.96;
  keys.tiers.host_bytes /= 2;
  expect_unlike(
      {config, keys}, {},
      "train.micro_batch = 2 on rank 0, 3 on rank 1; ranks.stage = \"3\" on rank 0, \"2\" on rank 1; "
      "optimizer.beta2 = 0.95 on rank 0, 0.96 on rank 1; "
      "tiers.host = \"1GiB\" on rank 0, \"512MiB\" on rank 1");
  Config places = config;
  places.store.path += "2";
  places.tiers.nvme[0].size_bytes = 0;
  const auto folder = [](const Config& own) { return fs::weakly_canonical(own.store.path).string(); };
  expect_unlike(
      {config, places}, {},
      fmt::format("store.path = {} on rank 0, {} on rank 1; tiers.nvme = 1 paths, 134217728 bytes on "
                  "rank 0, 1 paths, 0 bytes on rank 1",
                  folder(config), folder(places)));
}

TEST_F(MpiConfigTest, DataAndOptionsThatDifferAreRefused) {
  const std::string text = workspace_.path() + "/other text", other = workspace_.path() + "/other";
  std::ofstream(text) << std::string(4000, 'x');
  prepare_data({text}, other, {});
  const Config config = on_disk();
  Config validation = config, train = config;
  train.data.path = other;
  validation.data.path = copied_data("other validation");
  fs::copy_file(other + "/validation.tokens", validation.data.path + "/validation.tokens",
                fs::copy_options::overwrite_existing);
  const auto tokens = [](const Config& own) {
    const TokenFile file(own.data.path + "/validation.tokens");
    return fmt::format("{} tokens with checksum {:016x}", file.count(), file.checksum());
  };
  expect_unlike({config, validation}, {{}, {"--compare-ranks"}},
                fmt::format("data.path: validation.tokens = {} on rank 0, {} on rank 1; "
                            "--compare-ranks = not given on rank 0, given on rank 1",
                            tokens(config), tokens(validation)));
  expect_unlike({config, train, config}, {{}, {}, {"--resume"}}, "data.path: train.tokens = ");
}

TEST_F(MpiConfigTest, WhatIsAProcessOwnMayDiffer) {
  Config config = on_disk();
  config.placement.gradients = only("nvme");  // so that each process has scratch there
  Config changed = config;
  changed.data.path = copied_data("copy");
  fs::create_directory_symlink(fs::path(config.store.path).parent_path(), workspace_.path() + "/link");
  changed.store.path = workspace_.path() + "/link/" + fs::path(config.store.path).filename().string();
  changed.tiers.nvme[0].path = workspace_.path() + "/disk";
  fs::create_directory(changed.tiers.nvme[0].path);
  changed.io.queue = "threads";
  changed.io.depth = 3;
  changed.compute.threads = 3;
  EXPECT_EQ(record_of_job(mixed_job({config, changed})), run(in_memory()));
}

TEST_F(MpiConfigTest, AStoreThatProcessesCannotShareIsNotMade) {
  Config config = on_disk();
  config.commit.every_steps = 0;
  expect_refused(job(2, config), AllOf(HasSubstr("commit.every_steps = 0"), HasSubstr(config.store.path),
                                       HasSubstr("cannot be shared by processes")));
  expect_nothing_made(config);
  config.store.path = workspace_.path() + "/text/store";  // where none can be made: nobody tries
  expect_refused(job(2, config), HasSubstr("cannot be shared by processes"));
}

// The data of one process alone is cut short: its rank says so, and the job ends.
TEST_F(MpiConfigTest, ATokenFileCutShortIsNamedByItsRank) {
  Config config = in_memory();
  config.train.steps = 100'000;
  Config own = config;
  own.data.path = copied_data("own");
  Program running(workspace_.path(), {}, mpirun(mixed_job({config, own})));
  ASSERT_TRUE(wait_until([&] { return steps_told(program_.metrics_path()) >= 2; }));
  fs::resize_file(own.data.path + "/train.tokens", 100);
  const Outcome outcome = running.wait();
  EXPECT_GT(outcome.code, 0) << outcome;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("rank 1: "), HasSubstr(own.data.path + "/train.tokens: cut short"),
                                 HasSubstr("the file has 100 bytes")));
}

// Text of which every fourth sample of 32 tokens has padding alone for targets.
std::string padded_text() {
  std::string text;
  for (int block = 0; block < 400; ++block) {
    for (int i = 0; i < 32; ++i) text += block % 4 >= 2 ? '~' : static_cast<char>('a' + (block + i * i) % 23);
  }
  return text;
}

// In the first step one rank has targets and overflows, the other has none and does not.
TEST_F(MpiConfigTest, AnOverflowOnOneRankIsSkippedByAllAndLowersTheScaleOfAll) {
  Config config = in_memory();
  std::ofstream(workspace_.path() + "/padded text") << padded_text();
  config.data.path = workspace_.path() + "/padded";
  prepare_data({workspace_.path() + "/padded text"}, config.data.path, {});
  config.data.ignore_token = '~';
  config.train.steps = 24;
  config.train.micro_batch = 1;
  config.train.micro_batches = 2;
  config.precision.compute = "fp16";
  config.precision.loss_scale = -2;
  config.precision.loss_scale_initial = 0x1p24;
  config.precision.loss_scale_window = 1;
  config.precision.loss_scale_hysteresis = 1;
  const TokenFile tokens(config.data.path + "/" + kTrainTokensName);
  const auto targets = [&](std::uint32_t rank, std::uint64_t step) {
    const DistributedSampler sampler(tokens, train_samples(config));
    std::vector<std::uint32_t> in(sampler.contribution_samples(rank, step) * config.model.context);
    std::vector<std::int32_t> out(in.size());
    return sampler.fill(rank, in, out, step);
  };
  const auto suits = [&] {
    for (std::uint64_t step = 0; step < config.train.steps; ++step)
      if (targets(0, step) + targets(1, step) == 0) return false;  // skipped: nothing to compare
    return targets(0, 0) == 0 && targets(1, 0) > 1;
  };
  for (config.train.seed = 1; !suits(); ++config.train.seed) ASSERT_LT(config.train.seed, 1000u);

  Config threads = config;
  threads.ranks.count = 2;
  const Record wanted = run(config);
  EXPECT_EQ(run(threads), wanted);
  for (const char* stage : {"0", "3"}) {
    EXPECT_EQ(record_of_job(2, on(config, stage)), wanted) << stage;
    std::vector<bool> dropped;
    std::ifstream metrics(program_.metrics_path());
    for (std::string line; std::getline(metrics, line);) {
      const auto event = nlohmann::json::parse(line);
      if (event["event"] == "step") dropped.push_back(event.value("dropped", false));
    }
    ASSERT_EQ(dropped.size(), config.train.steps);
    EXPECT_TRUE(dropped[0]);
    EXPECT_GE(std::ranges::count(dropped, false), 3);
    // Found in the end, raised after a while, and too large again.
    EXPECT_TRUE(std::find(std::ranges::find(dropped, false), dropped.end(), true) != dropped.end());
  }
}

// Every rank draws weights of its own; those of rank 0 are what all go on with.
TEST_F(MpiConfigTest, OwnSeedsEndWithTheParametersOfRankZero) {
  const Record wanted = run(in_memory());
  for (const char* stage : {"0", "1", "3"}) {
    Config config = on(on_disk(), stage);
    config.ranks.own_seeds = true;
    // Copies of what other processes write, under stage 0, beside what this one writes.
    config.placement.optimizer_state = stage == std::string("1") ? only("host") : only("nvme");
    Arguments arguments = job(3, config);
    arguments.push_back("--compare-ranks");
    const Outcome outcome = run_program(workspace_.path(), {}, mpirun(arguments));
    ASSERT_EQ(outcome.code, 0) << outcome;
    EXPECT_EQ(record_of_metrics(program_.metrics_path()), wanted) << stage;
    for (const char* line : {"max |rank 0 - rank 1| = 0 over ", "max |rank 0 - rank 2| = 0 over "})
      EXPECT_EQ(count_of(outcome.out, line), 1u) << outcome;
  }
}

}  // namespace
}  // namespace terrace::e2e
