// Ranks that are processes: `mpirun -n N terrace train CONFIG --ranks-per-process 1`, as a user runs it. The
// numbers and the store are those of one process; a process that fails or is killed ends the job with its
// cause, and the store goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "src/base/units.h"
#include "terrace/store.h"
#include "tests/e2e/mpi_job.h"
#include "tests/e2e/watched_program.h"

namespace terrace::e2e {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

class MpiTrainTest : public MpiJobTest {};

struct Job {
  std::uint32_t processes;
  const char* stage;
  std::uint32_t replicas;
  const char* states;  // tier; null: no store
  double clip_norm;
  std::int64_t commit_every;
};

std::ostream& operator<<(std::ostream& out, const Job& job) {
  return out << job.processes << " processes, stage " << job.stage << ", states on "
             << (job.states != nullptr ? job.states : "any tier, no store") << ", clip " << job.clip_norm
             << ", commit every " << job.commit_every;
}

TEST_F(MpiTrainTest, EveryStageGivesTheBitsOfOneProcess) {
  static constexpr Job kJobs[] = {
      {1, "3", 0, "nvme", 1, 1},
      {2, "0", 0, "nvme", 0, 2},
      {2, "1", 0, "host", 1, 1},
      {3, "1", 0, nullptr, 0, 1},
      {3, "2", 0, "nvme", 1, 2},
      {2, "2", 0, "host", 0, 1},
      {2, "3", 0, "nvme", 0, 1},
      {4, "3", 0, "host", 1, 2},
      {4, "hybrid_shard", 2, "nvme", 1, 1},
      {4, "hybrid_shard", 2, "host", 0, 2},
  };
  for (const Job& job : kJobs) {
    SCOPED_TRACE(job);
    Config config = on(job.states != nullptr ? on_disk() : in_memory(), job.stage, job.replicas);
    config.optimizer.clip_norm = job.clip_norm;
    if (job.states != nullptr) {
      config.placement.optimizer_state = only(job.states);
      config.commit.every_steps = job.commit_every;
    }
    Config alone = in_memory();
    alone.optimizer.clip_norm = job.clip_norm;
    EXPECT_EQ(record_of_job(job.processes, config), run(alone));
    if (job.states == nullptr) continue;
    EXPECT_EQ(list_store(config.store.path).committed_step, 4u);
    EXPECT_TRUE(verify_store(config.store.path).whole());
  }
}

// Added up in another order: not the bits of one process, but those of as many threads.
TEST_F(MpiTrainTest, EveryOrderOfReductionGivesTheBitsOfThreads) {
  struct Order {
    std::uint32_t processes;
    const char* stage;
    const char* reduce;
    const char* hybrid_reduce;
  };
  for (const Order& order : {Order{2, "0", "last", "flat"}, Order{3, "2", "grouped", "flat"},
                             Order{4, "hybrid_shard", "each", "hierarchical"}}) {
    SCOPED_TRACE(order.stage);
    Config config = on(on_disk(), order.stage);
    config.ranks.reduce = order.reduce;
    config.ranks.hybrid_reduce = order.hybrid_reduce;
    const Record record = record_of_job(order.processes, config);
    Config threads = on(in_memory(), order.stage);
    threads.ranks = config.ranks;
    threads.ranks.count = order.processes;
    EXPECT_EQ(record, run(threads));
    EXPECT_NE(record.hash, run(in_memory()).hash);
  }
}

// One step by each, in turn: a store knows tensors and ranges, never processes.
TEST_F(MpiTrainTest, AStoreGoesOnWithAnyNumberOfProcessesOrThreads) {
  enum class Ranks { processes, threads };
  static constexpr struct {
    Ranks kind;
    std::uint32_t count;
    const char* stage;
    std::uint32_t replicas;
  } kTurns[] = {{Ranks::processes, 2, "3", 0}, {Ranks::threads, 1, "3", 0},
                {Ranks::processes, 3, "2", 0}, {Ranks::threads, 3, "3", 0},
                {Ranks::processes, 2, "0", 0}, {Ranks::processes, 4, "hybrid_shard", 2},
                {Ranks::threads, 2, "1", 0}};
  Config whole = in_memory();
  whole.train.steps = std::size(kTurns);
  const Record wanted = run(whole);
  for (const char* where : {"nvme", "host"}) {
    Config config = on_disk();
    config.placement.optimizer_state = only(where);
    config.commit.every_steps = where == std::string("nvme") ? 1 : 2;
    config.train.steps = 0;
    fs::remove(program_.metrics_path());
    for (const auto& turn : kTurns) {
      SCOPED_TRACE(testing::Message() << where << ", step " << config.train.steps + 1);
      const bool resume = config.train.steps++ > 0;
      Config now = on(config, turn.stage, turn.replicas);
      if (turn.kind == Ranks::processes) {
        const Outcome outcome = run_job(turn.count, now, resume);
        ASSERT_EQ(outcome.code, 0) << outcome;
      } else {
        now.ranks.count = turn.count;
        const Outcome outcome = program_.run(now, resume);
        ASSERT_EQ(outcome.code, 0) << outcome;
      }
    }
    EXPECT_EQ(record_of_metrics(program_.metrics_path()), wanted) << where;
  }
}

// A rank is killed, in the beginning or between steps; the job ends with all of it, and what is resumed ends
// where an undisturbed run ends.
TEST_F(MpiTrainTest, AKilledProcessEndsTheJobAndTheStoreGoesOn) {
  static constexpr struct {
    std::size_t steps;  // told before the kill; 0: as soon as the rank is there
    int rank;
    std::int64_t commit_every;
  } kKills[] = {{0, 1, 1}, {1, 0, 1}, {4, 1, 1}, {9, 0, 3}, {16, 2, 2}};
  constexpr std::size_t kSteps = 200;
  Config memory = in_memory();
  memory.train.steps = kSteps;
  const Record whole = run(memory);
  Config config = on(on_disk(), "3");
  config.placement.optimizer_state = shares(0, 0.5, 0.5);
  config.train.steps = kSteps;
  const auto begun = [&] { return fs::exists(config.store.path + "/manifest.json"); };
  std::size_t told = 0;
  for (const auto& kill : kKills) {
    SCOPED_TRACE(testing::Message() << "rank " << kill.rank << " after step " << told + kill.steps);
    config.commit.every_steps = kill.commit_every;
    Program running(workspace_.path(), {}, mpirun(job(3, config, begun())));
    pid_t victim = -1;
    ASSERT_TRUE(wait_until([&] {
      for (const pid_t child : children_of(running.id()))
        victim = rank_of(child) == kill.rank ? child : victim;
      return victim > 0;
    }));
    if (kill.steps > 0) {
      // A resumed run's metrics are cut back to its commit first.
      ASSERT_TRUE(wait_until([&] { return children_of(running.id()).size() == 3; }));
      ASSERT_TRUE(wait_until([&] { return steps_told(program_.metrics_path()) >= told + kill.steps; }));
    }
    const std::set<pid_t> all = children_of(running.id());
    ASSERT_TRUE(running.running());
    ::kill(victim, SIGKILL);
    const Outcome outcome = running.wait();
    EXPECT_GT(outcome.code, 0) << outcome;
    // Of a process that has not yet come to MPI_Init, mpirun may only know that it failed.
    const testing::Matcher<const std::string&> named = HasSubstr("signal 9");
    EXPECT_THAT(outcome.err, kill.steps > 0 ? named : AnyOf(named, HasSubstr("a non-zero exit code")));
    for (const pid_t process : all) {
      EXPECT_TRUE(wait_until([&] { return !runs(process); })) << "process " << process << " is left";
    }
    if (begun()) {
      EXPECT_TRUE(verify_store(config.store.path).whole());
      told = list_store(config.store.path).committed_step.value_or(0);
    }
  }
  ASSERT_TRUE(begun());
  EXPECT_LT(told, kSteps);
  EXPECT_EQ(record_of_job(2, config, true), whole);
}

TEST_F(MpiTrainTest, WhatFailsAtTheStartIsNamedByItsRank) {
  Config config = on_disk();
  // Nothing to resume, for all; then a store that is there.
  expect_refused(job(2, config, true), AllOf(HasSubstr("rank 0: "), HasSubstr("nothing to resume")));
  run(config);
  expect_refused(job(2, config), AllOf(HasSubstr("rank 0: "), HasSubstr("already holds a store")));
  // One rank's data is not there, as on a machine that lacks a mount.
  const Config whole = on_disk();
  Config broken = whole;
  broken.data.path = workspace_.path() + "/other";
  expect_refused(mixed_job({whole, broken}),
                 AllOf(HasSubstr("rank 1: "), HasSubstr(broken.data.path + "/train.tokens")));
}

TEST_F(MpiTrainTest, JobsThatCannotBeAreRefused) {
  Config config = on_disk();
  config.ranks.count = 3;
  expect_refused(job(2, config), HasSubstr("ranks.count = 3, and the job has 2 processes of one rank each"));
  config.ranks.count = 1;
  Arguments plain = job(2, config);
  plain.resize(plain.size() - 2);
  expect_refused(plain, HasSubstr("ranks.per_process = 0: each would be a run of its own"));
  config.ranks.count = 2;
  config.ranks.per_process = 1;
  const Outcome alone = program_.run(config, false);
  EXPECT_EQ(alone.code, 1);
  EXPECT_THAT(alone.err, HasSubstr("start it by mpirun -n 2"));
}

// A signal that reaches one process stops all after the same step.
TEST_F(MpiTrainTest, ASignalToOneProcessStopsAllAfterTheSameStep) {
  constexpr std::size_t kSteps = 300;
  Config memory = in_memory();
  memory.train.steps = kSteps;
  Config config = on(on_disk(), "2");
  config.train.steps = kSteps;
  config.commit.every_steps = 1000;  // what stands at the end was committed by the stop
  std::size_t steps = 0;
  for (const int rank : {0, 1}) {
    SCOPED_TRACE(testing::Message() << "rank " << rank);
    Program running(workspace_.path(), {}, mpirun(job(2, config, steps > 0)));
    ASSERT_TRUE(wait_until([&] { return steps_told(program_.metrics_path()) >= steps + 3; }));
    for (const pid_t child : children_of(running.id())) {
      if (rank_of(child) == rank) ::kill(child, SIGINT);
    }
    const Outcome outcome = running.wait();
    EXPECT_EQ(outcome.code, 0) << outcome;
    steps = steps_told(program_.metrics_path());
    ASSERT_LT(steps, kSteps);
    EXPECT_EQ(count_of(outcome.out, "stopped after step " + std::to_string(steps) + " of "), 1u) << outcome;
    EXPECT_THAT(read_file(program_.metrics_path()), HasSubstr("\"event\":\"end\""));
    EXPECT_EQ(list_store(config.store.path).committed_step, steps);
  }
  EXPECT_EQ(record_of_job(2, config, true), run(memory));
}

// mpirun waits a second, passes SIGTERM on, and a second later kills what is left (and reads no output all
// the while, so that a rank may stand still in a write): a stop may come too late, and is a kill then.
TEST_F(MpiTrainTest, SigtermToMpirunLosesNothingCommitted) {
  constexpr std::size_t kSteps = 400;
  Config memory = in_memory();
  memory.train.steps = kSteps;
  Config config = on(on_disk(), "1");
  config.train.steps = kSteps;
  config.commit.every_steps = 2;
  {
    Program running(workspace_.path(), {}, mpirun(job(2, config)));
    ASSERT_TRUE(wait_until([&] { return steps_told(program_.metrics_path()) >= 6; }));
    const std::set<pid_t> all = children_of(running.id());
    running.send(SIGTERM);
    const Outcome outcome = running.wait();
    EXPECT_GT(outcome.code, 0) << outcome;
    for (const pid_t process : all)
      EXPECT_TRUE(wait_until([&] { return !runs(process); })) << "process " << process << " is left";
    const std::uint64_t committed = list_store(config.store.path).committed_step.value_or(0);
    EXPECT_GE(committed, 2u);
    const std::string stopped = "stopped after step ";
    const std::size_t at = outcome.out.find(stopped);
    if (at != std::string::npos) {
      EXPECT_EQ(std::stoull(outcome.out.substr(at + stopped.size())), committed);
    }
  }
  EXPECT_EQ(record_of_job(2, config, true), run(memory));
}

// `terrace plan` shows the host of all processes; a process holds its own part of it, and says so.
TEST_F(MpiTrainTest, EachProcessStaysWithinItsPartOfTheLedger) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's memory is its own";
  Config config = on(on_disk(), "3");
  config.model.width = 256;
  config.model.heads = 4;
  config.tiers.device_bytes = kGiB;
  config.placement.chunk_numel = 1u << 16;
  config.placement.optimizer_state = only("host");
  Program running(workspace_.path(), {}, mpirun(job(2, config)));
  std::map<int, Held> most;
  while (running.running()) {
    for (const pid_t child : children_of(running.id())) {
      const Held now = held_by(child).value_or(Held{});
      Held& held = most[rank_of(child)];
      held.resident_bytes = std::max(held.resident_bytes, now.resident_bytes);
      held.locked_bytes = std::max(held.locked_bytes, now.locked_bytes);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  const Outcome outcome = running.wait();
  ASSERT_EQ(outcome.code, 0) << outcome;
  std::ifstream metrics(program_.metrics_path());
  std::uint64_t ledger = 0, told = 0;
  for (std::string line; std::getline(metrics, line);) {
    const auto event = nlohmann::json::parse(line);
    if (event["event"] != "end") continue;
    ledger = event["peak"]["ledger_bytes"];
    told = event["peak"]["resident_bytes"];
  }
  ASSERT_GT(ledger, 0u);
  for (const int rank : {0, 1}) {
    std::cout << "rank " << rank << ": ledger " << ledger / kMiB << " MiB, peak "
              << most[rank].resident_bytes / kMiB << " MiB, page-locked " << most[rank].locked_bytes / kMiB
              << " MiB\n";
    EXPECT_LE(most[rank].resident_bytes, ledger + ledger / 100 + 16 * kMiB) << "rank " << rank;
    EXPECT_GE(most[rank].resident_bytes + 64 * kMiB, ledger / 10 * 9) << "rank " << rank;
  }
  EXPECT_LE(told, most[0].resident_bytes + 4 * kMiB);

  const auto planned = [&](const char* per_process, const std::string& line) {
    const Outcome plan =
        run_program(workspace_.path(), {"plan", write_config(workspace_.path(), config), "--no-measure",
                                        "--ranks", "2", "--ranks-per-process", per_process});
    EXPECT_EQ(plan.code, 0) << plan;
    std::istringstream words(plan.out.substr(plan.out.find(line) + line.size()));
    double mebibytes = 0;
    std::string unit;
    words >> mebibytes >> unit;
    EXPECT_EQ(unit, "MiB") << plan;
    return mebibytes;
  };
  EXPECT_NEAR(planned("1", "program and libraries"), 2 * planned("0", "program and libraries"), 0.1);
}

}  // namespace
}  // namespace terrace::e2e
