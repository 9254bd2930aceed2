// One persistent thread a rank, where a process has several.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace terrace {

// Thread contract: run() from one thread at a time.
class RankThreads {
 public:
  // `stuck` (may be empty) is called by run(), once, as TrainOptions::on_stuck says.
  // Throws does_not_fit where the system gives no more threads.
  RankThreads(std::uint32_t ranks, std::chrono::milliseconds time_limit,
              std::function<void(const std::string&)> stuck);
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  // Calls body(rank) on every rank's own thread (with one rank: on this one); returns when all have returned.
  // Of what they throw, the cause is rethrown, with the rank it came from: ranks that were only stopped by
  // another's failure throw `cancelled`, which counts only where nothing else was thrown.
  //
  // A thread cannot be ended from outside: with a rank that hangs, this does not return. So the failure of
  // the others is logged while it is waited for, a second after they met it at the latest; and where nobody
  // failed, that a rank has not ended within the time limit of the first that did. When that has been said,
  // and the rank is not back after a time limit, five seconds at most, `stuck` is called.
  void run(const std::function<void(std::uint32_t)>& body);

 private:
  void loop(std::uint32_t rank);
  void stop();
  void wait_for_all(std::unique_lock<std::mutex>& lock);
  std::chrono::milliseconds patience() const;
  void give_up(std::unique_lock<std::mutex>& lock, const std::string& what);
  bool failed() const;                // mutex_ is held
  std::string running_ranks() const;  // mutex_ is held

  std::uint32_t ranks_;
  std::chrono::milliseconds time_limit_;
  std::function<void(const std::string&)> stuck_;  // empty once it was called
  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void(std::uint32_t)>* body_ = nullptr;
  std::uint64_t round_ = 0;
  std::uint32_t running_ = 0;
  bool ending_ = false;
  std::vector<std::exception_ptr> failures_;
  std::vector<bool> ended_;
  std::vector<std::thread> threads_;
};

}  // namespace terrace
