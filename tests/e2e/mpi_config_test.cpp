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

}  // namespace
}  // namespace terrace::e2e
