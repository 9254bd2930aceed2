// A rank that fails or hangs, at any kind of operation and in any stage: the others stop within the time
// limit, the error names the rank and the first cause, and what was committed goes on at any number of ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/base_sink.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <future>
#include <iostream>
#include <mutex>
#include <regex>

#include "src/base/log.h"
#include "src/train/session.h"
#include "terrace/error.h"
#include "terrace/store.h"
#include "tests/e2e/tiny_run.h"
#include "tests/support/faulty_queue.h"
#include "tests/support/watchdog.h"

namespace terrace::e2e {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

struct Mesh {
  std::uint32_t ranks;
  const char* stage;
  std::uint32_t replicas = 0;
};

constexpr Mesh kMeshes[] = {
    {2, "0"}, {3, "0"}, {2, "2"}, {3, "2"}, {2, "3"}, {4, "3"}, {4, "hybrid_shard", 2}};
// Where the runs that failed go on: other ranks, other stages, one rank.
constexpr Mesh kNext[] = {{1, "3"}, {2, "3"}, {4, "2"}, {3, "0"}, {4, "hybrid_shard", 2}};

std::ostream& operator<<(std::ostream& out, const Mesh& mesh) {
  return out << mesh.ranks << " ranks, stage " << mesh.stage;
}

constexpr int kKinds = static_cast<int>(OpKind::commit) + 1;

// Operations of each kind that one rank comes to, and what happens at a given one.
class Breaker {
 public:
  struct At {
    std::uint32_t rank = 0;
    OpKind kind = OpKind::commit;
    std::uint64_t number = 0;  // from 1; 0: never
  };
  Breaker(std::uint32_t ranks, const At& at, std::function<void()> strike)
      : counts_(ranks), at_(at), strike_(std::move(strike)) {}

  void operator()(std::uint32_t rank, const Op& op) {
    const std::uint64_t number = ++counts_[rank][static_cast<std::size_t>(op.kind)];
    if (at_.number == 0 || rank != at_.rank || op.kind != at_.kind || number != at_.number) return;
    struck_ = true;
    strike_();
  }

  std::uint64_t count(std::uint32_t rank, OpKind kind) const {
    return counts_[rank][static_cast<std::size_t>(kind)];
  }
  bool struck() const { return struck_; }

 private:
  std::vector<std::array<std::atomic<std::uint64_t>, kKinds>> counts_;
  const At at_;
  const std::function<void()> strike_;
  std::atomic<bool> struck_{false};
};

class RankFaultTest : public testing::TestWithParam<Mesh> {
 protected:
  RankFaultTest() : whole_(run(make(workspace_.config()))) {}

  static Config make(Config config) {
    config.model.layers = 1;
    config.model.width = 32;
    config.train.micro_batch = 2;
    config.train.micro_batches = 5;
    config.train.steps = 4;
    config.train.eval_batches = 1;
    config.optimizer.warmup_steps = 1;
    config.placement.chunk_numel = 4096;
    config.compute.threads = 2;
    config.ranks.time_limit_s = 60;  // longer than the watchdogs: who fails says so, nobody waits
    if (config.tiers.nvme.empty()) return config;
    config.commit.every_steps = 1;
    place_all(config, shares(0, 0.4, 0.6));
    return config;
  }
  static Config on(Config config, const Mesh& mesh) {
    config.ranks.count = mesh.ranks;
    config.ranks.stage = mesh.stage;
    config.ranks.replicas = mesh.replicas;
    return config;
  }

  // A fresh store at the test's mesh.
  void fresh() {
    if (!config_.store.path.empty()) fs::remove_all(fs::path(config_.store.path).parent_path());
    config_ = on(make(workspace_.config_on_disk()), GetParam());
  }

  SessionOptions with(Breaker& breaker) const {
    SessionOptions session;
    session.before_operation = [&](std::uint32_t rank, const Op& op) { breaker(rank, op); };
    return session;
  }

  // The error that the run ends with; nothing when it ends well, and then as the undisturbed one.
  std::optional<std::string> error_of(const SessionOptions& session, const TrainOptions& options = {}) {
    try {
      EXPECT_EQ(train(config_, options, session).state_hash, whole_.hash);
      return std::nullopt;
    } catch (const Error& error) {
      return std::string(error_code_name(error.code())) + ": " + error.what();
    }
  }

  // Without faults what is left goes on from its last commit, at another mesh each time.
  void expect_goes_on() {
    const Mesh& next = kNext[next_++ % std::size(kNext)];
    SCOPED_TRACE(testing::Message() << "resumed with " << next);
    const Watchdog watchdog("a resume");
    const StoreListing listing = list_store(config_.store.path);  // it opens
    const Record rest = run(on(config_, next), true);
    EXPECT_EQ(rest.hash, whole_.hash) << listing.committed_step.value_or(0);
    EXPECT_EQ(rest.eval_loss, whole_.eval_loss);
    const std::size_t done = whole_.losses.size() - rest.losses.size();
    EXPECT_EQ(done, listing.committed_step.value_or(0));
    EXPECT_TRUE(std::equal(rest.losses.begin(), rest.losses.end(),
                           whole_.losses.begin() + static_cast<std::ptrdiff_t>(done)));
    EXPECT_TRUE(std::equal(rest.norms.begin(), rest.norms.end(),
                           whole_.norms.begin() + static_cast<std::ptrdiff_t>(done)));
  }

  Workspace workspace_;
  const Record whole_;
  Config config_;
  std::size_t next_ = GetParam().ranks;
};

TEST_P(RankFaultTest, ARankThatThrowsAnywhereEndsTheRunInItsWords) {
  const std::uint32_t ranks = GetParam().ranks;
  Breaker counter(ranks, {}, [] {});
  fresh();
  ASSERT_EQ(error_of(with(counter)), std::nullopt);
  std::uint32_t rank = 0;
  int kinds = 0;
  for (int k = 0; k < kKinds; ++k) {
    const auto kind = static_cast<OpKind>(k);
    rank = (rank + 1) % ranks;
    const std::uint64_t count = counter.count(rank, kind);
    if (count == 0 || (k + static_cast<int>(ranks)) % 3 == 0) continue;  // other meshes have it
    ++kinds;
    const Breaker::At at{rank, kind, 1 + count * 2 / 3};
    const std::string what = std::string(name_of(kind)) + " " + std::to_string(at.number) + " of " +
                             std::to_string(count) + " on rank " + std::to_string(rank);
    SCOPED_TRACE(what);
    fresh();
    Breaker breaker(ranks, at, [&] { throw std::runtime_error("broken on purpose"); });
    std::optional<std::string> error;
    {
      const Watchdog watchdog(what, std::chrono::seconds(30));
      error = error_of(with(breaker));
    }
    EXPECT_TRUE(breaker.struck());
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(*error, "internal: rank " + std::to_string(rank) + ": broken on purpose");
    expect_goes_on();
  }
  // Everything a step has, among it what only several ranks do.
  for (const OpKind kind :
       {OpKind::forward, OpKind::backward, OpKind::all_gather, OpKind::reduce_scatter, OpKind::fold,
        OpKind::grad_stats, OpKind::update, OpKind::read_state, OpKind::write_state, OpKind::commit,
        OpKind::copy_to_device, OpKind::read_param}) {
    EXPECT_GT(counter.count(0, kind), 0u) << name_of(kind);
  }
  std::cout << kinds << " kinds of operation\n";
}

TEST_P(RankFaultTest, AFailingDiskEndsTheRunWithItsRank) {
  const auto counter = std::make_shared<FaultHooks>(FaultPlan{});
  SessionOptions session;
  session.io_hooks = counter;
  fresh();
  ASSERT_EQ(error_of(session), std::nullopt);
  const FaultCounts calls = counter->counts();
  const FaultPlan plans[] = {{.fail_read_at = calls.reads / 3},       {.fail_write_at = calls.writes / 2},
                             {.fail_write_at = calls.writes * 3 / 4}, {.fail_flush_at = calls.flushes / 2},
                             {.fail_flush_at = calls.flushes - 1},    {.flip_read_at = calls.reads / 2}};
  for (const FaultPlan& plan : plans) {
    SCOPED_TRACE(testing::Message() << "read " << plan.fail_read_at << plan.flip_read_at << ", write "
                                    << plan.fail_write_at << ", flush " << plan.fail_flush_at);
    fresh();
    session.io_hooks = std::make_shared<FaultHooks>(plan);
    std::optional<std::string> error;
    {
      const Watchdog watchdog("a failing disk", std::chrono::seconds(30));
      error = error_of(session);
    }
    ASSERT_TRUE(error.has_value());
    EXPECT_THAT(*error, AllOf(AnyOf(HasSubstr("I/O failed: "), HasSubstr("corrupt: ")), HasSubstr(": rank "),
                              HasSubstr(workspace_.path().substr(5))));
    expect_goes_on();
  }
}

// Tokens are handed to all ranks by one thread, before they run; here in two bytes each, so that damage can
// be seen.
TEST_P(RankFaultTest, DamagedTokensEndTheRunBeforeTheStep) {
  fresh();
  const std::string folder = workspace_.path() + "/wide";
  const std::string path = folder + "/" + kTrainTokensName;
  fs::create_directories(folder);
  fs::copy_file(config_.data.path + "/" + kValidationTokensName, folder + "/" + kValidationTokensName);
  {
    const TokenFile narrow(config_.data.path + "/" + kTrainTokensName);
    std::vector<std::uint32_t> tokens(narrow.count());
    narrow.read(0, tokens);
    TokenFileWriter wide(path, 2, narrow.vocabulary());
    wide.append(tokens);
    wide.finish();
  }
  config_.data.path = folder;
  fs::copy_file(path, path + ".kept");
  TrainOptions options;
  options.on_step = [&](const StepReport& report) {
    if (report.step != 2) return;
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4096);
    const std::string bytes(fs::file_size(path) - 4096, '\xff');
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  };
  std::optional<std::string> error;
  {
    const Watchdog watchdog("damaged tokens", std::chrono::seconds(30));
    error = error_of({}, options);
  }
  ASSERT_TRUE(error.has_value());
  EXPECT_THAT(*error,
              AllOf(HasSubstr("contribution "), HasSubstr("token 65535"), HasSubstr("model.vocabulary")));
  fs::remove(path);
  fs::rename(path + ".kept", path);
  expect_goes_on();
}

// Keeps what is logged while it lives, in place of writing it.
class Log {
 public:
  Log() : sink_(std::make_shared<Sink>()), before_(logger()->sinks()) { logger()->sinks() = {sink_}; }
  ~Log() { logger()->sinks() = before_; }

  // Waits for a line that says so, for half a minute at most.
  std::optional<std::string> wait_for(const std::regex& words) {
    std::unique_lock lock(sink_->mutex);
    std::optional<std::string> found;
    sink_->changed.wait_for(lock, std::chrono::seconds(30), [&] {
      for (const std::string& line : sink_->lines)
        if (std::regex_search(line, words)) found = line;
      return found.has_value();
    });
    return found;
  }
  std::string text() {
    const std::lock_guard lock(sink_->mutex);
    std::string text;
    for (const std::string& line : sink_->lines) text += line + "\n";
    return text;
  }

 private:
  struct Sink : spdlog::sinks::base_sink<spdlog::details::null_mutex> {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::string> lines;
    void sink_it_(const spdlog::details::log_msg& message) override {
      const std::lock_guard lock(mutex);
      lines.emplace_back(message.payload.begin(), message.payload.end());
      changed.notify_all();
    }
    void flush_() override {}
  };

  std::shared_ptr<Sink> sink_;
  std::vector<spdlog::sink_ptr> before_;
};

// The thread that hangs cannot be ended, so train() does not return before it goes on; what is wrong is said
// before that.
TEST_P(RankFaultTest, ARankThatHangsIsNamedWithinTheLimitAndStopsTheOthers) {
  const std::uint32_t ranks = GetParam().ranks;
  Breaker counter(ranks, {}, [] {});
  fresh();
  ASSERT_EQ(error_of(with(counter)), std::nullopt);
  std::uint32_t rank = 0;
  int by_collective = 0;
  std::size_t turn = ranks;  // each mesh has half of the kinds; all have been in all stages' meshes together
  for (const OpKind kind :
       {OpKind::all_gather, OpKind::forward, OpKind::backward, OpKind::reduce_scatter, OpKind::fold,
        OpKind::grad_stats, OpKind::update, OpKind::read_state, OpKind::write_state, OpKind::commit}) {
    rank = (rank + 1) % ranks;
    const std::uint64_t count = counter.count(rank, kind);
    if (count == 0 || turn++ % 2 != 0) continue;
    const Breaker::At at{rank, kind, 1 + count / 2};
    const std::string what = std::string(name_of(kind)) + " " + std::to_string(at.number) + " of " +
                             std::to_string(count) + " on rank " + std::to_string(rank);
    SCOPED_TRACE(what);
    fresh();
    config_.ranks.time_limit_s = 1;
    std::promise<void> let_go;
    Breaker breaker(ranks, at, [gone_on = let_go.get_future().share()] { gone_on.wait(); });
    const Watchdog watchdog(what, std::chrono::seconds(90));
    std::optional<std::string> said;
    std::optional<std::string> error;
    {
      Log log;
      auto running = std::async(std::launch::async, [&] { return error_of(with(breaker)); });
      const std::string number = std::to_string(rank);
      said = log.wait_for(std::regex("ranks? ([0-9]+ and )*" + number +
                                     "( and [0-9]+)* (did not come to .*waiting for rank|still at work)"));
      EXPECT_TRUE(said.has_value()) << log.text();
      EXPECT_TRUE(breaker.struck());
      let_go.set_value();
      error = running.get();
    }
    if (!said) continue;
    if (said->find("still at work") != std::string::npos) {  // nothing was left for the others to wait for
      EXPECT_TRUE(!error || error->find("did not come to") != std::string::npos) << *error;
    } else {
      ++by_collective;
      EXPECT_THAT(*said, AllOf(HasSubstr("step "), HasSubstr("(the limit is 1.00 s)"),
                               AnyOf(HasSubstr("all_gather of "), HasSubstr("all_to_all of "),
                                     HasSubstr("all_reduce of the gradient's norm"),
                                     HasSubstr("barrier of the commit"))));
      ASSERT_TRUE(error.has_value());
      EXPECT_THAT(*error, AllOf(HasSubstr("cancelled: "), HasSubstr("did not come to ")));
    }
    expect_goes_on();
  }
  EXPECT_GE(by_collective, 2);
}

// A program can end where a thread cannot be ended.
TEST(RankStuck, ARankThatNeverComesBackIsGivenUp) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const OpKind kind : {OpKind::backward, OpKind::update}) {  // met in a collective; after the last one
    EXPECT_EXIT(
        {
          Workspace workspace;
          Config config = workspace.config();
          config.train.steps = 2;
          config.train.micro_batches = 2;
          config.optimizer.clip_norm = kind == OpKind::update ? 0 : 1;
          config.ranks.count = 2;
          config.ranks.time_limit_s = 0.5;
          TrainOptions options;
          options.on_stuck = [](const std::string& what) {
            std::cerr << "given up: " << what << "\n";
            std::_Exit(7);
          };
          SessionOptions session;
          session.before_operation = [&](std::uint32_t rank, const Op& op) {
            while (rank == 1 && op.kind == kind) std::this_thread::sleep_for(std::chrono::hours(1));
          };
          train(config, options, session);
        },
        testing::ExitedWithCode(7), "given up: .*rank 1");
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, RankFaultTest, testing::ValuesIn(kMeshes), [](const auto& mesh) {
  return std::to_string(mesh.param.ranks) + "_stage_" + mesh.param.stage;
});

}  // namespace
}  // namespace terrace::e2e
