// Faults of the disk while a run goes on: those that can be resumed do not show; the others end it with one
// error that says what and where, at once, and the store opens at its last commit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <thread>

#include "io/extent_store.h"
#include "io/io_probe.h"
#include "src/train/session.h"
#include "terrace/error.h"
#include "tests/e2e/tiny_run.h"
#include "tests/support/faulty_queue.h"

namespace terrace::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Ends the test program when a part of it hangs.
class Watchdog {
 public:
  explicit Watchdog(std::string what) : what_(std::move(what)), thread_([this] { watch(); }) {}
  ~Watchdog() {
    ended_ = true;
    thread_.join();
  }

 private:
  void watch() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!ended_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (std::chrono::steady_clock::now() < end) continue;
      std::cerr << "hangs: " << what_ << std::endl;
      std::abort();
    }
  }

  std::string what_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

// train() on a queue with faults.
std::string train_with(const Config& config, const std::shared_ptr<IoHooks>& hooks) {
  SessionOptions session;
  session.io_hooks = hooks;
  return train(config, {}, session).state_hash;
}

class IoFaultTest : public testing::TestWithParam<const char*> {
 protected:
  IoFaultTest() {
    hash_ = run(make(workspace_.config())).hash;
    config_ = make(workspace_.config_on_disk());
  }

  void SetUp() override {
    if (GetParam() == std::string("uring") && !probe_io_uring().available)
      GTEST_SKIP() << probe_io_uring().detail;
  }

  static Config make(Config config) {
    config.model.layers = 2;
    config.model.width = 32;
    config.train.micro_batch = 2;
    config.train.micro_batches = 2;
    config.train.steps = 5;
    config.train.eval_batches = 0;
    config.io.queue = GetParam();
    config.placement.chunk_numel = 8192;
    if (config.tiers.nvme.empty()) return config;
    config.commit.every_steps = 2;
    place_all(config, shares(0, 0.4, 0.6));
    return config;
  }

  void fresh() { config_ = make(workspace_.config_on_disk()); }

  // A run in which the numbered fault strikes; gives its error, or nothing when it never struck.
  std::optional<std::string> run_with(const FaultPlan& plan, const std::string& what) {
    fresh();
    const auto hooks = std::make_shared<FaultHooks>(plan);
    std::optional<std::string> error;
    {
      const Watchdog watchdog(what);
      try {
        EXPECT_EQ(train_with(config_, hooks), hash_);
      } catch (const Error& thrown) {
        error = std::string(error_code_name(thrown.code())) + ": " + thrown.what();
      }
    }
    EXPECT_EQ(error.has_value(), hooks->counts().failed + hooks->counts().flipped > 0) << error.value_or("");
    return error;
  }

  // Without faults what is left goes on from its last commit.
  void expect_goes_on() { EXPECT_EQ(run(config_, ExtentStore::exists(config_.store.path)).hash, hash_); }

  Workspace workspace_;
  std::string hash_;
  Config config_;
};

TEST_P(IoFaultTest, WhatCanBeResumedDoesNotShow) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    fresh();
    config_.io.piece_bytes = 16384;
    const auto hooks = std::make_shared<FaultHooks>(FaultPlan{.seed = seed,
                                                              .short_transfers = 0.5,
                                                              .ragged_writes = 0.3,
                                                              .interrupts = 0.2,
                                                              .again = 0.05,
                                                              .delays = 0.2});
    const Watchdog watchdog("resumed faults");
    EXPECT_EQ(train_with(config_, hooks), hash_);
    EXPECT_GT(hooks->counts().shortened, 20u);
    EXPECT_GT(hooks->counts().interrupted, 20u);
    EXPECT_GT(hooks->counts().delayed, 20u);
  }
}

TEST_P(IoFaultTest, AFaultAtAnyCallEndsTheRunWithOneErrorAndLosesNoCommit) {
  const auto counter = std::make_shared<FaultHooks>(FaultPlan{});
  fresh();
  ASSERT_EQ(train_with(config_, counter), hash_);
  const FaultCounts calls = counter->counts();
  ASSERT_GT(calls.reads, 100u);
  ASSERT_GT(calls.writes, 100u);
  ASSERT_GT(calls.flushes, 6u);
  // How many calls the same run makes may vary a little with what the queue joins; the last ones may not
  // come.
  int struck = 0, trials = 0;
  const auto expect_words = [&](const std::optional<std::string>& error, const std::string& what,
                                const char* why) {
    SCOPED_TRACE(what);
    ++trials;
    if (error) {
      ++struck;
      EXPECT_THAT(*error,
                  AllOf(HasSubstr("I/O failed: "), HasSubstr(why), HasSubstr(workspace_.path().substr(5))));
      if (what[0] != 'f') {
        EXPECT_THAT(*error, AllOf(HasSubstr(" at offset "), HasSubstr("wanted "), HasSubstr("got ")));
      }
    }
    expect_goes_on();
  };
  for (std::uint64_t n = 1; n <= calls.flushes; ++n) {
    const std::string what = "flush " + std::to_string(n);
    expect_words(run_with({.fail_flush_at = n}, what), what, "Input/output error");
  }
  for (std::uint64_t n = 1; n <= calls.writes; n += 1 + calls.writes / 15) {
    const std::string what = "write " + std::to_string(n);
    expect_words(run_with({.fail_write_at = n}, what), what, "Input/output error");
  }
  for (std::uint64_t n = 1; n <= calls.reads; n += 1 + calls.reads / 15) {
    const std::string what = "read " + std::to_string(n);
    expect_words(run_with({.fail_read_at = n}, what), what, "Input/output error");
  }
  EXPECT_GT(struck, trials * 8 / 10);
}

TEST_P(IoFaultTest, AFlippedBitOfAReadIsFoundAndNamed) {
  const auto counter = std::make_shared<FaultHooks>(FaultPlan{});
  fresh();
  ASSERT_EQ(train_with(config_, counter), hash_);
  const std::uint64_t reads = counter->counts().reads;
  int struck = 0;
  for (std::uint64_t n = 1; n <= reads; n += 1 + reads / 15) {
    const std::string what = "read " + std::to_string(n);
    SCOPED_TRACE(what);
    const auto error = run_with({.seed = n, .flip_read_at = n}, what);
    if (error) {
      ++struck;
      EXPECT_THAT(*error, AllOf(HasSubstr("corrupt: "), HasSubstr(workspace_.path().substr(5)),
                                HasSubstr("offset "), HasSubstr("wanted "), HasSubstr("got ")));
    }
    expect_goes_on();
  }
  EXPECT_GT(struck, 10);
}

// Faults of slow disks: a failure comes while much else is under way.
TEST_P(IoFaultTest, AFailureAmongSlowTransfersDoesNotHang) {
  for (std::uint64_t n = 1; n <= 5; ++n) {
    const std::string what = "slow disk, write " + std::to_string(17 * n);
    SCOPED_TRACE(what);
    const auto error = run_with(
        {.seed = n, .delays = 0.5, .max_delay_us = 2000, .fail_read_at = 23 * n, .fail_write_at = 17 * n},
        what);
    ASSERT_TRUE(error);
    EXPECT_THAT(*error, HasSubstr("I/O failed: "));
    expect_goes_on();
  }
}

INSTANTIATE_TEST_SUITE_P(Queues, IoFaultTest, testing::Values("uring", "threads"),
                         [](const auto& queue) { return std::string(queue.param); });

}  // namespace
}  // namespace terrace::e2e
