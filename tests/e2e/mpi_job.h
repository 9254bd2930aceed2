// Jobs of `mpirun -n N terrace train CONFIG --ranks-per-process 1`, as a user runs them.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tests/e2e/program.h"

namespace terrace::e2e {

using Arguments = std::vector<std::string>;

std::size_t count_of(const std::string& text, const std::string& part);

// Turns the new process into mpirun with `arguments`.
std::function<void()> mpirun(const Arguments& arguments);

// The processes that mpirun has started.
std::set<pid_t> children_of(pid_t parent);

// Rank of a process that mpirun has started; -1 when it is none or has ended.
int rank_of(pid_t process);

bool runs(pid_t process);

// Skipped in a build without MPI. What hangs is ended after the two minutes of Program.
class MpiJobTest : public testing::Test {
 protected:
  void SetUp() override;

  // Two blocks of width 32, five contributions a step: no number of ranks divides them.
  Config in_memory() const { return shape(workspace_.config()); }
  Config on_disk() { return shape(workspace_.config_on_disk()); }

  // Arguments of mpirun for a job of so many processes.
  Arguments job(std::uint32_t processes, const Config& config, bool resume = false) const;
  // For a job of as many processes as configurations, each with its own, in a folder of its own, and with
  // `more` arguments of its own.
  Arguments mixed_job(const std::vector<Config>& configs, const std::vector<Arguments>& more = {}) const;
  Outcome run_job(std::uint32_t processes, const Config& config, bool resume = false) const;
  // A job that must end well; its metrics, which are written once, and what it says, once.
  Record record_of_job(std::uint32_t processes, const Config& config, bool resume = false) const;
  Record record_of_job(const Arguments& arguments) const;
  // A job that must end with an error that says `words`, of its own accord and with nothing left.
  void expect_refused(const Arguments& arguments, const testing::Matcher<const std::string&>& words) const;

  static Config on(Config config, const std::string& stage, std::uint32_t replicas = 0);

  Workspace workspace_;
  TrainProgram program_{workspace_.path()};

 private:
  static Config shape(Config config);
};

}  // namespace terrace::e2e
