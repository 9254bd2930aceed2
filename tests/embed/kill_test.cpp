// A program that is killed between any two calls, or at any moment, ends where the undisturbed one ends.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <optional>
#include <random>
#include <sstream>
#include <thread>

#include "tests/support/temp_dir.h"

namespace terrace::embed_test {
namespace {

struct Ended {
  int status = 0;
  std::string out;
  bool killed() const { return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL; }
  bool good() const { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }
};

struct Kind {
  const char* clip_norm;
  const char* every_steps;
};

constexpr int kBusyExit = 75;  // of kill_child: the store is in use

class EmbedKillTest : public testing::TestWithParam<Kind> {
 protected:
  // Runs the child; kills it after `kill_after` when that is given. On a busy machine the kernel may hold
  // what a killed child had under way for longer than an opening waits: then again.
  Ended run(const std::string& folder, long kill_at,
            std::optional<std::chrono::microseconds> kill_after = {}) {
    Ended ended = run_once(folder, kill_at, kill_after);
    for (int i = 0; i < 10 && WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == kBusyExit; ++i)
      ended = run_once(folder, kill_at, kill_after);
    return ended;
  }

  Ended run_once(const std::string& folder, long kill_at,
                 std::optional<std::chrono::microseconds> kill_after) {
    std::array<int, 2> pipe{};
    EXPECT_EQ(::pipe(pipe.data()), 0);
    const std::string at = std::to_string(kill_at);
    const pid_t child = ::fork();
    if (child == 0) {
      ::dup2(pipe[1], STDOUT_FILENO);
      ::close(pipe[0]);
      ::close(pipe[1]);
      ::execl(TERRACE_KILL_CHILD, "kill_child", folder.c_str(), GetParam().clip_norm, GetParam().every_steps,
              at.c_str(), nullptr);
      ::_exit(127);
    }
    ::close(pipe[1]);
    if (kill_after) {
      std::this_thread::sleep_for(*kill_after);
      ::kill(child, SIGKILL);
    }
    Ended ended;
    std::array<char, 256> text{};
    for (ssize_t got = 0; (got = ::read(pipe[0], text.data(), text.size())) > 0;)
      ended.out.append(text.data(), static_cast<std::size_t>(got));
    ::close(pipe[0]);
    ::waitpid(child, &ended.status, 0);
    return ended;
  }

  TempDir folder_;
};

TEST_P(EmbedKillTest, BetweenAnyTwoCalls) {
  const Ended whole = run(folder_.file("whole"), 0);
  ASSERT_TRUE(whole.good()) << whole.out;
  std::istringstream words(whole.out);
  std::string hash;
  long calls = 0;
  words >> hash >> calls;
  ASSERT_GT(calls, 100);
  std::mt19937 random(4);
  for (long first = 1; first <= calls; first += 1 + static_cast<long>(random() % 40)) {
    const std::string folder = folder_.file("killed");
    std::filesystem::remove_all(folder);
    // Killed once there, then once more somewhere in what is left.
    ASSERT_TRUE(run(folder, first).killed()) << first;
    const Ended second = run(folder, 1 + static_cast<long>(random() % 150));
    ASSERT_TRUE(second.killed() || second.good()) << first << second.out;
    const Ended last = run(folder, 0);
    ASSERT_TRUE(last.good()) << first << last.out;
    EXPECT_EQ(last.out.substr(0, 32), hash) << "killed at call " << first << " of " << calls;
  }
}

TEST_P(EmbedKillTest, AtAnyMoment) {
  const auto start = std::chrono::steady_clock::now();
  const Ended whole = run(folder_.file("whole"), 0);
  const auto took =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start);
  ASSERT_TRUE(whole.good());
  std::mt19937 random(5);
  const std::string folder = folder_.file("killed");
  int kills = 0;
  for (int i = 0; i < 15; ++i) {
    kills += run(folder, 0, took * (random() % 100) / 100).killed() ? 1 : 0;
  }
  const Ended last = run(folder, 0);
  ASSERT_TRUE(last.good()) << last.out;
  EXPECT_EQ(last.out.substr(0, 32), whole.out.substr(0, 32));
  EXPECT_GT(kills, 3);
}

INSTANTIATE_TEST_SUITE_P(Runs, EmbedKillTest, testing::Values(Kind{"0", "3"}, Kind{"1", "1"}),
                         [](const auto& at) {
                           return std::string(at.param.clip_norm[0] == '0' ? "unclipped" : "clipped") +
                                  "_every_" + at.param.every_steps;
                         });

}  // namespace
}  // namespace terrace::embed_test
