// Whole jobs under mpirun that go wrong: named in words, ended within the limit, nothing left running.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace terrace {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

struct Ended {
  int status = -1;  // of mpirun; 124 when it had to be ended from outside
  std::string output{};
};

bool runs(int pid) {
  return ::kill(pid, 0) == 0 || errno != ESRCH;
}

// Three ranks of mpi_job, one of which does `how`. Fails the test where a process is left.
Ended run_job(const std::string& how) {
  const std::string command =
      "timeout -k 5 60 " TERRACE_MPIRUN " -n 3 " TERRACE_MPI_JOB " '" + how + "' 2>&1";
  Ended ended;
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  char buffer[4096];
  for (std::size_t got = 0; (got = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    ended.output.append(buffer, got);
  }
  const int status = ::pclose(pipe);
  ended.status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
  std::istringstream lines(ended.output);
  int pids = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("pid ")) continue;
    ++pids;
    const int pid = std::stoi(line.substr(4));
    for (int i = 0; i < 1000 && runs(pid); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_FALSE(runs(pid)) << "process " << pid << " is left";
  }
  EXPECT_EQ(pids, 3) << ended.output;
  EXPECT_NE(ended.status, 124) << "still running after 60 s\n" << ended.output;
  return ended;
}

// A job whose rank does `how` ends with an error and these words.
void expect_end(const std::string& how, const testing::Matcher<const std::string&>& words) {
  const Ended ended = run_job(how);
  EXPECT_NE(ended.status, 0);
  EXPECT_THAT(ended.output, words);
  EXPECT_THAT(ended.output, Not(HasSubstr("all is done")));
}

TEST(MpiJob, WithoutAFaultEndsWithoutAnError) {
  const Ended ended = run_job("nothing");
  EXPECT_EQ(ended.status, 0) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("all is done"));
}

TEST(MpiJob, ARankThatThrowsIsNamed) {
  expect_end("throws", HasSubstr("this rank ends: the disk is on fire"));
}

TEST(MpiJob, ARankThatAbortsTheJobIsNamed) {
  expect_end("aborts", HasSubstr("terrace: rank 1: the disk is on fire"));
}

TEST(MpiJob, ARankThatHangsIsNamed) {
  expect_end("hangs",
             AnyOf(HasSubstr("this rank ends: rank 1 did not come to all_gather of h.3 (unit 4, step 2, "
                             "300 elements of u8), call 3 of group world: rank 0 waited 2.0"),
                   HasSubstr("this rank ends: rank 1 did not come to all_gather of h.3 (unit 4, step 2, "
                             "300 elements of u8), call 3 of group world: rank 2 waited 2.0")));
}

TEST(MpiJob, ARankThatIsKilledIsNamedByMpirun) {
  expect_end("is killed", AllOf(HasSubstr("rank 1"), HasSubstr("signal 9")));
}

TEST(MpiJob, AProcessThatIsStoppedIsNamed) {
  expect_end("stops", HasSubstr("this rank ends: rank 1 did not come to all_gather of h.3 (unit 4, step 2"));
}

TEST(MpiJob, TheRefereesProcessStoppedIsNamed) {
  expect_end("stops rank 0",
             HasSubstr("this rank ends: rank 0 did not answer in all_gather of h.3 (unit 4, step "
                       "2, 300 elements of u8), call 3 of group world: rank "));
}

TEST(MpiJob, AProcessThatIsStoppedInATransferEndsTheJob) {
  expect_end("stops in a fold",
             HasSubstr("no transfer has moved for 3.50 s in reduce_scatter of h.3 (unit 4, "
                       "step 2, 24000000 elements of fp32) of group world"));
}

TEST(MpiJob, ARankThatEndsEarlyIsNamed) {
  expect_end("leaves",
             HasSubstr("this rank ends: rank 1 left group world before all_gather of h.3 (unit 4, step 2"));
}

TEST(MpiJob, ARankThatNeverStartsEndsTheJob) {
  expect_end("never starts", HasSubstr("terrace: the start of MPI has not ended within 3.50 s"));
}

TEST(MpiJob, ARankThatDoesNotEndEndsTheJob) {
  const Ended ended = run_job("does not end");
  EXPECT_NE(ended.status, 0);
  EXPECT_THAT(ended.output, HasSubstr("not every process of the job came to its end: waited 3.50 s"));
}

TEST(MpiJob, AProgramMayHaveMpiOfItsOwn) {
  const Ended ended = run_job("own MPI");
  EXPECT_EQ(ended.status, 0) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("all is done"));
  EXPECT_THAT(ended.output, HasSubstr("after MPI: MPI was finalised: no world can be made any more"));
}

TEST(MpiJob, MpiThatAllowsNoThreadsIsRefused) {
  const Ended ended = run_job("own MPI, one thread");
  EXPECT_NE(ended.status, 0);
  EXPECT_THAT(ended.output, HasSubstr("this rank ends: MPI gives thread level 0 (wanted 3)"));
}

}  // namespace
}  // namespace terrace
