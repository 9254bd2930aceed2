// Contract C2, seen from outside: the process's anonymous and page-locked memory stays within the ledger, a
// run lives in a memory cgroup of that size, nothing grows, and what the system refuses changes no number.
#include <gmock/gmock.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>

#include "src/base/units.h"
#include "src/model/describe.h"
#include "src/train/setup.h"
#include "tests/e2e/program.h"
#include "tests/e2e/watched_program.h"

namespace terrace::e2e {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

// The contract's tolerance is 1% and 64 MiB. These models are small, and what they hold beside their arenas
// is smaller than that: 16 MiB let a forgotten line show.
std::uint64_t most_bytes(const Plan& plan) {
  const std::uint64_t ledger = plan.ledger.total(Tier::device) + plan.ledger.total(Tier::host);
  return ledger + ledger / 100 + 16 * kMiB;
}

Plan planned(const Config& config) {
  const ModelShape model =
      describe(model_spec(config), config.train.micro_batch, compute_dtype(config), grad_dtype(config));
  Plan plan = make_plan(plan_request(config, model, config.placement.chunk_numel, 0));
  EXPECT_TRUE(plan.fits) << refusal(plan);
  return plan;
}

std::uint64_t ledger_bytes(const Plan& plan) {
  return plan.ledger.total(Tier::device) + plan.ledger.total(Tier::host);
}

class MemoryTest : public testing::Test {
 protected:
  // 2.4 million parameters; states take 28 MiB.
  Config config() {
    Config config = workspace_.config_on_disk();
    config.model.layers = 3;
    config.model.width = 256;
    config.model.heads = 4;
    config.model.context = 128;
    config.train.micro_batch = 4;
    config.train.steps = 2;
    config.tiers.device_bytes = config.tiers.host_bytes = kGiB;
    config.tiers.nvme[0].size_bytes = kGiB;
    config.commit.every_steps = 2;
    return config;
  }

  Workspace workspace_;
  TrainProgram program_{workspace_.path()};
};

struct Shape {
  const char* compute;
  std::uint32_t micro_batches;
  std::uint64_t chunk_numel;
};

std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  return out << shape.compute << ", " << shape.micro_batches << " contributions, chunks of "
             << shape.chunk_numel;
}

class MemoryOfPlacements : public MemoryTest, public testing::WithParamInterface<Shape> {};

TEST_P(MemoryOfPlacements, StaysWithinTheLedger) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's memory is its own";
  static constexpr struct {
    const char* name;
    double device, host, nvme;
  } kPlacements[] = {{"device", 1, 0, 0},
                     {"host", 0, 1, 0},
                     {"nvme", 0, 0, 1},
                     {"halves", 0, 0.5, 0.5},
                     {"thirds", 0.34, 0.33, 0.33}};
  for (const auto& placement : kPlacements) {
    SCOPED_TRACE(testing::Message() << GetParam() << ", " << placement.name);
    Config config = this->config();
    config.precision.compute = GetParam().compute;
    config.train.micro_batches = GetParam().micro_batches;
    config.placement.chunk_numel = GetParam().chunk_numel;
    place_all(config, shares(placement.device, placement.host, placement.nvme));
    const Plan plan = planned(config);
    const std::uint64_t ledger = ledger_bytes(plan), locked = plan.arena_bytes[1];
    const Watched watched = watch(program_, workspace_.path(), config);
    ASSERT_EQ(watched.outcome.code, 0) << watched.outcome;
    const std::uint64_t peak = watched.most.resident_bytes;
    const auto mebibytes = [](std::uint64_t bytes) { return static_cast<double>(bytes) / kMiB; };
    std::cout << std::fixed << std::setprecision(1) << std::setw(7) << placement.name << ": ledger "
              << mebibytes(ledger) << " MiB, peak " << mebibytes(peak) << " MiB, page-locked "
              << mebibytes(watched.most.locked_bytes) << " of " << mebibytes(locked) << " MiB\n";
    EXPECT_LE(peak, most_bytes(plan));
    EXPECT_GE(peak + 64 * kMiB, ledger / 10 * 9) << "the ledger promises far more than there is";
    if (watched.outcome.err.find("is not page-locked") == std::string::npos) {
      EXPECT_NEAR(static_cast<double>(watched.most.locked_bytes), static_cast<double>(locked),
                  static_cast<double>(locked) / 100);
    }
    const nlohmann::json told = told_peak(program_.metrics_path());
    EXPECT_EQ(told.value("locked_bytes", std::uint64_t{0}), watched.most.locked_bytes);
    EXPECT_EQ(told["ledger_bytes"], ledger) << "the run's ledger is the plan's";
    // Its own samples are fewer, and the kernel's counters are a few pages off.
    EXPECT_LE(told["resident_bytes"].get<std::uint64_t>(), peak + 4 * kMiB);
    EXPECT_GE(told["resident_bytes"].get<std::uint64_t>() + 64 * kMiB, peak);
    fs::remove_all(fs::path(config.store.path).parent_path());
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, MemoryOfPlacements,
                         testing::Values(Shape{"fp16", 1, 1u << 20}, Shape{"bf16", 1, 1u << 20},
                                         Shape{"bf16", 4, 16384}, Shape{"fp32", 1, 16384},
                                         Shape{"fp32", 4, 1u << 20}),
                         [](const auto& shape) {
                           return std::string(shape.param.compute) + "x" +
                                  std::to_string(shape.param.micro_batches) + "chunks" +
                                  std::to_string(shape.param.chunk_numel);
                         });

// Small chunks and many contributions make programs larger than what they move.
TEST_F(MemoryTest, ProgramsLargerThanTheArenasAreCounted) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's memory is its own";
  Config config = this->config();
  config.train.micro_batch = 1;
  config.train.micro_batches = 8;
  config.placement.chunk_numel = 4096;
  place_all(config, only("nvme"));
  const Plan plan = planned(config);
  EXPECT_GT(ledger_bytes(plan), 2 * (plan.arena_bytes[0] + plan.arena_bytes[1]));
  const Watched watched = watch(program_, workspace_.path(), config);
  ASSERT_EQ(watched.outcome.code, 0) << watched.outcome;
  EXPECT_LE(watched.most.resident_bytes, most_bytes(plan));
}

// Threads bring memory of their own, and so do operands that are widened because the processor has no bf16.
TEST_F(MemoryTest, ThreadsAndProductsAreCounted) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's memory is its own";
  for (const std::uint32_t threads : {1u, 16u}) {
    Config config = this->config();
    config.compute.threads = threads;
    place_all(config, only("host"));
    const Plan plan = planned(config);
    const Watched watched = watch(program_, workspace_.path(), config);
    ASSERT_EQ(watched.outcome.code, 0) << watched.outcome;
    EXPECT_LE(watched.most.resident_bytes, most_bytes(plan)) << threads << " threads";
  }
  Config config = this->config();
  config.compute.threads = 8;
  place_all(config, only("host"));
  const Watched watched =
      watch(program_, workspace_.path(), config, [] { ::setenv("ONEDNN_MAX_CPU_ISA", "AVX2", 1); });
  ASSERT_EQ(watched.outcome.code, 0) << watched.outcome;
  const nlohmann::json told = told_peak(program_.metrics_path());
  EXPECT_LE(watched.most.resident_bytes, told["ledger_bytes"].get<std::uint64_t>() + 16 * kMiB) << "AVX2";
}

// The ledger is refused as a whole: what a run holds beside its arenas is a part of the host budget.
TEST_F(MemoryTest, WhatTheLibrariesHoldIsRefusedToo) {
  Config config = this->config();
  place_all(config, only("nvme"));
  config = with_least_budgets(config);
  const Outcome enough = program_.run(config, false);
  EXPECT_EQ(enough.code, 0) << enough;
  config.store.path += "-again";
  config.tiers.nvme[0].path += "-again";
  fs::create_directories(config.tiers.nvme[0].path);
  config.tiers.host_bytes -= 4096;
  const Outcome little = program_.run(config, false);
  EXPECT_EQ(little.code, 1) << little;
  EXPECT_THAT(little.err, HasSubstr("program and libraries"));
  EXPECT_FALSE(fs::exists(config.store.path));
}

// A cgroup of version 1 or 2 whose processes may hold `bytes`; none where it cannot be made.
class MemoryGroup {
 public:
  explicit MemoryGroup(std::uint64_t bytes) {
    static constexpr struct {
      const char* root;
      const char* limit;
      const char* most;
    } kVersions[] = {{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"},
                     {"/sys/fs/cgroup", "memory.max", "memory.peak"}};
    for (const auto& version : kVersions) {
      path_ = std::string(version.root) + "/terrace-test-" + std::to_string(::getpid());
      std::error_code refused;
      if (!fs::create_directory(path_, refused)) continue;
      std::ofstream limit(path_ + "/" + version.limit);
      if (fs::exists(path_ + "/" + version.limit) && limit << bytes << std::flush) {
        most_ = path_ + "/" + version.most;
        return;
      }
      fs::remove(path_, refused);
    }
    path_.clear();
  }
  ~MemoryGroup() {
    std::error_code busy;
    for (int tries = 0; made() && !fs::remove(path_, busy) && tries < 100; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;

  bool made() const { return !path_.empty(); }
  void join() const { std::ofstream(path_ + "/cgroup.procs") << ::getpid() << std::flush; }
  std::string most() const { return read_file(most_); }

 private:
  std::string path_;
  std::string most_;
};

TEST_F(MemoryTest, ARunLivesInAGroupOfTheLedgersSize) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's memory is its own";
  for (const char* tier : {"host", "nvme"}) {
    SCOPED_TRACE(tier);
    Config config = this->config();
    place_all(config, only(tier));
    config.precision.compute = "fp32";
    config.train.micro_batch = 16;
    const Plan plan = planned(config);
    const std::uint64_t ledger = ledger_bytes(plan);
    {
      const MemoryGroup group(most_bytes(plan));
      if (!group.made()) GTEST_SKIP() << "cannot make a memory cgroup here";
      const Outcome outcome = program_.run(config, false, [&] { group.join(); });
      EXPECT_EQ(outcome.code, 0) << outcome;
      EXPECT_GT(std::strtoull(group.most().c_str(), nullptr, 10), ledger / 4) << "it did run in the group";
    }
    // In half the memory it does not live: the group is one.
    config.store.path += "-again";
    const MemoryGroup group(ledger / 2);
    ASSERT_TRUE(group.made());
    const Outcome outcome = program_.run(config, false, [&] { group.join(); });
    EXPECT_EQ(outcome.signal, SIGKILL) << outcome;
  }
}

// Over 500 steps with commits and evaluations nothing grows.
TEST_F(MemoryTest, NothingGrows) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's memory is its own";
  for (const char* queue : {"uring", "threads"}) {
    SCOPED_TRACE(queue);
    Config config = small_on_disk(workspace_);
    config.io.queue = queue;
    config.train.steps = 500;
    config.train.micro_batches = 2;
    config.train.eval_every = 50;
    config.commit.every_steps = 10;
    place_all(config, shares(0, 0.5, 0.5));
    fs::remove(program_.metrics_path());
    const Growth growth = watch_growth(program_, workspace_.path(), config);
    if (growth.outcome.err.find("io_uring_setup") != std::string::npos) GTEST_SKIP() << growth.outcome.err;
    expect_nothing_grew(growth);
  }
}

// Without huge pages, page-locking or registered buffers a run says so and gives the same bits.
TEST_F(MemoryTest, WhatTheSystemRefusesChangesNoNumber) {
  Config config = small_on_disk(workspace_);
  config.tiers.host_bytes = config.tiers.device_bytes = 256 * kMiB;
  place_all(config, shares(0, 0.5, 0.5));
  config.placement.chunk_numel = 1u << 18;
  config.model.width = 256;
  config.model.heads = 4;
  config.train.steps = 3;
  const Record whole = run(config);
  const auto again = [&](const std::function<void()>& prepare) {
    fs::remove_all(config.store.path);
    const Outcome outcome = program_.run(config, false, prepare);
    EXPECT_EQ(outcome.code, 0) << outcome;
    EXPECT_EQ(record_of_metrics(program_.metrics_path()), whole);
    return outcome.err;
  };
  const auto once = [](const std::string& log, const std::string& part) {
    EXPECT_NE(log.find(part), std::string::npos) << log;
    EXPECT_EQ(log.find(part), log.rfind(part)) << "said once: " << log;
  };
  const auto no_huge_pages = [] { ::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0); };
  once(again(no_huge_pages), "no huge pages for the host region");
  if (::geteuid() != 0 || kSanitized) return;  // mlock does nothing under a sanitizer
  const auto no_locks = [] {
    limit(RLIMIT_MEMLOCK, 0);
    drop_page_lock_right();
  };
  const std::string log = again(no_locks);
  once(log, "is not page-locked: raise `ulimit -l` to at least ");
  // With nothing to lock there is no ring at all on kernels that count its memory.
  EXPECT_TRUE(log.find("transfers run unregistered") != std::string::npos ||
              log.find("without io_uring") != std::string::npos)
      << log;
  again([&] {
    no_huge_pages();
    no_locks();
    refuse_io_uring();
  });
}

}  // namespace
}  // namespace terrace::e2e
