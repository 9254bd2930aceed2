// Signals, and a second run on the store of a first.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "terrace/store.h"
#include "tests/e2e/program.h"

namespace terrace::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

class SignalTest : public testing::Test {
 protected:
  SignalTest() {
    config_ = small_on_disk(workspace_);
    config_.commit.every_steps = 1000;  // what stands at the end was committed by the stop
    set_steps(200);
  }

  void set_steps(std::uint64_t steps) {
    config_.train.steps = steps;
    Config in_memory = small_in_memory(workspace_);
    in_memory.train.steps = steps;
    whole_ = run(in_memory);
  }

  bool told(std::size_t steps) const { return steps_told(program_.metrics_path()) >= steps; }

  // The program was asked to stop: it ended well, and what it says, its metrics and its store agree.
  void expect_stopped_well(const Outcome& outcome) const {
    ASSERT_EQ(outcome.code, 0) << outcome;
    EXPECT_THAT(outcome.err, HasSubstr("stopping"));
    const std::size_t steps = steps_told(program_.metrics_path());
    ASSERT_GE(steps, 1u);
    EXPECT_THAT(outcome.out, HasSubstr("stopped after step " + std::to_string(steps) + " of "));
    EXPECT_THAT(read_file(program_.metrics_path()), HasSubstr("\"event\":\"end\""));
    EXPECT_EQ(list_store(config_.store.path).committed_step, steps);
    EXPECT_TRUE(verify_store(config_.store.path).whole());
  }

  void expect_resume_ends_as_the_whole() const {
    const Outcome outcome = program_.run(config_, true);
    ASSERT_EQ(outcome.code, 0) << outcome;
    EXPECT_EQ(record_of_metrics(program_.metrics_path()), whole_);
  }

  Workspace workspace_;
  TrainProgram program_{workspace_.path()};
  Config config_;
  Record whole_;
};

TEST_F(SignalTest, TheStepIsFinishedAndCommitted) {
  bool resume = false;
  std::size_t after = 3;
  for (const int signal : {SIGINT, SIGTERM, SIGINT}) {
    Program running(workspace_.path(), program_.arguments(config_, resume));
    ASSERT_TRUE(wait_until([&] { return told(after); }));
    running.send(signal);
    expect_stopped_well(running.wait());
    resume = true;
    after = steps_told(program_.metrics_path()) + 3;
  }
  expect_resume_ends_as_the_whole();
}

// From the first sign of life to the first step's line.
TEST_F(SignalTest, AtEveryMomentOfTheBeginning) {
  const std::vector<std::function<bool()>> moments{
      [&] { return fs::exists(config_.store.path + "/manifest.json.new"); },
      [&] { return fs::exists(config_.store.path + "/manifest.json"); },
      [&] { return fs::exists(program_.metrics_path()); },
      [&] { return told(1); },
  };
  for (std::size_t i = 0; i < moments.size(); ++i) {
    SCOPED_TRACE(i);
    fs::remove(program_.metrics_path());
    config_.store.path = workspace_.path() + "/store-" + std::to_string(i);
    Program running(workspace_.path(), program_.arguments(config_, false));
    ASSERT_TRUE(wait_until(moments[i]));
    running.send(i % 2 == 0 ? SIGTERM : SIGINT);
    expect_stopped_well(running.wait());
  }
  expect_resume_ends_as_the_whole();
}

TEST_F(SignalTest, AtTheEnd) {
  set_steps(12);
  for (int i = 0; i < 6; ++i) {
    SCOPED_TRACE(i);
    fs::remove(program_.metrics_path());
    config_.store.path = workspace_.path() + "/store-" + std::to_string(i);
    Program running(workspace_.path(), program_.arguments(config_, false));
    const bool last_step = i % 2 == 0;
    ASSERT_TRUE(wait_until([&] {
      return last_step ? told(12)
                       : read_file(program_.metrics_path()).find("\"event\":\"end\"") != std::string::npos;
    }));
    running.send(SIGTERM);
    const Outcome outcome = running.wait();
    // Once the end is told everything is done; then the signal may also meet a program that has no more to
    // finish.
    EXPECT_TRUE(outcome.code == 0 || (!last_step && outcome.signal == SIGTERM)) << outcome;
    EXPECT_EQ(record_of_metrics(program_.metrics_path()), whole_);
    EXPECT_EQ(list_store(config_.store.path).committed_step, 12u);
    expect_resume_ends_as_the_whole();
  }
}

TEST_F(SignalTest, TwiceStopsAtOnceAndLosesNothing) {
  config_.commit.every_steps = 5;
  config_.model.width = 128;  // steps long enough for two signals
  config_.train.micro_batch = 32;
  config_.train.steps = 14;
  Config in_memory = small_in_memory(workspace_);
  in_memory.model = config_.model;
  in_memory.train = config_.train;
  whole_ = run(in_memory);
  Program running(workspace_.path(), program_.arguments(config_, false));
  ASSERT_TRUE(wait_until([&] { return told(6); }));
  running.send(SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  running.send(SIGTERM);
  const Outcome outcome = running.wait();
  EXPECT_TRUE(outcome.signal == SIGTERM || outcome.code == 0) << outcome;
  expect_resume_ends_as_the_whole();
}

// Metrics that are read slowly hold a run back at every step: it is alive and owns its store for as long as
// wanted.
class SlowRun {
 public:
  SlowRun(const std::string& folder, const Config& config) : folder_(folder) {
    fs::create_directories(folder);
    const TrainProgram program(folder);
    if (::mkfifo(program.metrics_path().c_str(), 0600) != 0) throw std::runtime_error("mkfifo");
    pipe_ = ::open(program.metrics_path().c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (pipe_ < 0 || ::fcntl(pipe_, F_SETPIPE_SZ, 4096) < 0) throw std::runtime_error("pipe");
    program_ = std::make_unique<Program>(folder, program.arguments(config, false));
    reader_ = std::thread([this] { read(); });
  }
  ~SlowRun() {
    hurry();
    program_.reset();
    ended_ = true;
    if (reader_.joinable()) reader_.join();
    ::close(pipe_);
  }

  void hurry() { slow_ = false; }
  std::size_t bytes() const { return bytes_; }
  Program& program() { return *program_; }

  // To the end; gives the metrics.
  Record finish() {
    hurry();
    const Outcome outcome = program_->wait();
    ended_ = true;
    reader_.join();
    EXPECT_EQ(outcome.code, 0) << outcome;
    std::ofstream(folder_ + "/told.jsonl") << text_;
    return record_of_metrics(folder_ + "/told.jsonl");
  }

 private:
  void read() {
    std::string piece(4096, 0);
    while (true) {
      const bool last = ended_;
      const ssize_t got = ::read(pipe_, piece.data(), slow_ ? 200 : piece.size());
      if (got > 0) text_.append(piece, 0, static_cast<std::size_t>(got));
      bytes_ = text_.size();
      if (got <= 0 && last) return;
      if (slow_ || got <= 0) std::this_thread::sleep_for(std::chrono::milliseconds(slow_ ? 50 : 1));
    }
  }

  std::string folder_;
  int pipe_ = -1;
  std::unique_ptr<Program> program_;
  std::atomic<bool> slow_{true}, ended_{false};
  std::atomic<std::size_t> bytes_{0};
  std::string text_;
  std::thread reader_;
};

TEST_F(SignalTest, ASecondRunIsRefusedByNameAndTheFirstGoesOn) {
  config_.commit.every_steps = 3;
  Config once = small_on_disk(workspace_);  // one extent a chunk, gone at the end
  once.train.steps = config_.train.steps;
  once.commit.every_steps = 0;
  SlowRun first(workspace_.path() + "/first", config_), first_once(workspace_.path() + "/first-once", once);
  ASSERT_TRUE(wait_until([&] { return first.bytes() > 0 && first_once.bytes() > 0; }));

  const std::string second = workspace_.path() + "/second", third = workspace_.path() + "/third";
  fs::create_directories(second);
  fs::create_directories(third);
  Program resumed(second, TrainProgram(second).arguments(config_, true));
  Program again(third, TrainProgram(third).arguments(once, false));
  const Outcome fresh = program_.run(config_, false);
  EXPECT_EQ(fresh.code, 1);
  EXPECT_THAT(fresh.err, HasSubstr(config_.store.path + " already holds a store"));
  const std::size_t before = first.bytes();
  const auto in_use = [](const Config& config, SlowRun& by) {
    return AllOf(HasSubstr("the store " + fs::canonical(config.store.path).string() +
                           " is in use by process " + std::to_string(by.program().id()) + ": "),
                 HasSubstr(" is locked"));
  };
  const Outcome resumed_outcome = resumed.wait();
  EXPECT_EQ(resumed_outcome.code, 1) << resumed_outcome;
  EXPECT_THAT(resumed_outcome.err, in_use(config_, first));
  const Outcome again_outcome = again.wait();
  EXPECT_EQ(again_outcome.code, 1) << again_outcome;
  EXPECT_THAT(again_outcome.err, in_use(once, first_once));
  EXPECT_GT(first.bytes(), before);
  EXPECT_EQ(first.finish(), whole_);
  EXPECT_EQ(first_once.finish(), whole_);
  EXPECT_FALSE(fs::exists(once.store.path + "/manifest.json"));
}

}  // namespace
}  // namespace terrace::e2e
