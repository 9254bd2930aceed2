// Faults of the disk while a program goes on: those that can be resumed do not show; the others reach the
// program at its next call, in words, and at every call after it; nothing hangs, and the store opens at its
// last commit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>

#include "tests/embed/host_program.h"
#include "tests/support/faulty_queue.h"

namespace terrace::embed_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::uint64_t kSteps = 4;

class EmbedFaultTest : public testing::TestWithParam<double> {
 protected:
  EmbedFaultTest() { hash_ = *run({}, nullptr); }

  void fresh() {
    std::filesystem::remove_all(folder_.path());
    config_ = disk_config(folder_.path(), 2, GetParam(), 0.7);
    config_.commit.every_steps = 2;
  }

  // The hash of a whole run; the error of one that a fault ended goes to error_.
  std::optional<std::string> run(const std::string& what, const std::shared_ptr<IoHooks>& hooks,
                                 bool resume = false) {
    const Watchdog watchdog(what);
    if (!resume) fresh();
    error_.clear();
    HostProgram program(odd_sizes());
    std::unique_ptr<OptimizerBackend> optimizer;
    try {
      optimizer = std::make_unique<OptimizerBackend>(
          config_, program.registration(), BackendOptions{.io_hooks = hooks, .bounds = kSmallUnits});
      if (resume && optimizer->steps() > 0) {
        EXPECT_EQ(optimizer->program_state(), "after step " + std::to_string(optimizer->steps()));
      }
      program.run(*optimizer, kSteps, 2);
      optimizer->save();
      return optimizer->state_hash();
    } catch (const Error& error) {
      error_ = std::string(error_code_name(error.code())) + ": " + error.what();
    }
    if (optimizer != nullptr) expect_repeated(*optimizer, program);
    return std::nullopt;
  }

  void expect_repeated(OptimizerBackend& optimizer, HostProgram& program) {
    const auto same = [&](const auto& call) {
      try {
        call();
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(std::string(error_code_name(error.code())) + ": " + error.what(), error_);
      }
    };
    const std::vector<std::byte> gradient = program.gradient(1, 0, 0);
    same([&] { optimizer.wait_for_parameters(); });
    same([&] { optimizer.wait_for_parameters(2); });
    same([&] { optimizer.gradient_ready(0, gradient.data(), ElementType::fp32); });
    same([&] { optimizer.end_contribution(); });
    same([&] { optimizer.announce_step(HostProgram::hyper(1)); });
    same([&] { optimizer.step(HostProgram::hyper(1)); });
    same([&] { optimizer.step(); });
    same([&] { optimizer.save(); });
    same([&] { optimizer.state_hash(); });
  }

  TempDir folder_;
  Config config_;
  std::string hash_;
  std::string error_;
};

TEST_P(EmbedFaultTest, WhatCanBeResumedDoesNotShow) {
  const auto hooks = std::make_shared<FaultHooks>(FaultPlan{.seed = 3,
                                                            .short_transfers = 0.5,
                                                            .ragged_writes = 0.3,
                                                            .interrupts = 0.2,
                                                            .again = 0.05,
                                                            .delays = 0.2});
  EXPECT_EQ(run("resumed faults", hooks), hash_);
  EXPECT_GT(hooks->counts().interrupted, 20u);
}

TEST_P(EmbedFaultTest, AFaultAtAnyCallComesInWordsAndLosesNoCommit) {
  const auto counter = std::make_shared<FaultHooks>(FaultPlan{});
  ASSERT_EQ(run("count", counter), hash_);
  const FaultCounts calls = counter->counts();
  ASSERT_GT(calls.reads, 50u);
  int struck = 0, trials = 0;
  const auto strike = [&](FaultPlan plan, const std::string& what, const char* why) {
    SCOPED_TRACE(what);
    plan.only_path = folder_.path();
    const auto hooks = std::make_shared<FaultHooks>(plan);
    const auto hash = run(what, hooks);
    ++trials;
    if (hooks->counts().failed + hooks->counts().flipped > 0 && !hash) {
      ++struck;
      EXPECT_THAT(error_, AllOf(HasSubstr(why), HasSubstr(folder_.path())));
    } else {
      EXPECT_EQ(hash, hash_) << error_;
    }
    EXPECT_EQ(
        run(what + ", resumed", nullptr, std::filesystem::exists(config_.store.path + "/manifest.json")),
        hash_)
        << error_;
  };
  for (std::uint64_t n = 1; n <= calls.flushes; ++n)
    strike({.fail_flush_at = n}, "flush " + std::to_string(n), "I/O failed: ");
  for (std::uint64_t n = 1; n <= calls.writes; n += 1 + calls.writes / 8)
    strike({.fail_write_at = n}, "write " + std::to_string(n), "I/O failed: ");
  for (std::uint64_t n = 1; n <= calls.writes; n += 1 + calls.writes / 4)
    strike({.fail_write_at = n, .error = ENOSPC}, "full disk at write " + std::to_string(n), "No space left");
  for (std::uint64_t n = 1; n <= calls.reads; n += 1 + calls.reads / 8)
    strike({.fail_read_at = n}, "read " + std::to_string(n), "I/O failed: ");
  for (std::uint64_t n = 1; n <= calls.reads; n += 1 + calls.reads / 4)
    strike({.seed = n, .flip_read_at = n}, "bit of read " + std::to_string(n), "corrupt: ");
  EXPECT_GT(struck, trials * 7 / 10);
}

// Once armed, flushes are held; once let go, they fail.
class HeldFlush final : public IoHooks {
 public:
  void arm() {
    const std::lock_guard lock(mutex_);
    armed_ = true;
  }
  void let_go() {
    const std::lock_guard lock(mutex_);
    free_ = true;
    changed_.notify_all();
  }
  int see_flush(const std::string&, int result) override {
    std::unique_lock lock(mutex_);
    if (!armed_) return result;
    changed_.wait(lock, [&] { return free_; });
    return -EIO;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool armed_ = false, free_ = false;
};

// The program is at its own work and sends no gradient, so the compute lane waits for it, when the commit
// behind fails: the next call says it all the same.
TEST_P(EmbedFaultTest, AFailureIsSaidBeforeTheStepEnds) {
  const Watchdog watchdog("a failure before the step ends");
  fresh();
  config_.commit.every_steps = 1;
  config_.compute.adversarial = false;  // lanes do not run by themselves there
  const auto hooks = std::make_shared<HeldFlush>();
  HostProgram program(odd_sizes());
  OptimizerBackend optimizer(config_, program.registration(), {.io_hooks = hooks, .bounds = kSmallUnits});
  program.step(optimizer, 2);
  program.step(optimizer, 2);
  hooks->arm();
  optimizer.wait_for_parameters();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // for the compute lane to get there
  hooks->let_go();
  std::string said;
  while (said.empty()) {
    try {
      optimizer.wait_for_parameters(0);
    } catch (const Error& error) {
      said = error.what();
    }
  }
  EXPECT_THAT(said, AllOf(HasSubstr("Input/output error"), HasSubstr(folder_.path())));
}

INSTANTIATE_TEST_SUITE_P(ClipNorm, EmbedFaultTest, testing::Values(0.0, 1.0),
                         [](const auto& at) { return at.param > 0 ? "clipped" : "unclipped"; });

}  // namespace
}  // namespace terrace::embed_test
