// One persistent thread a rank, where a process has several.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace terrace {

// Thread contract: run() from one thread at a time.
class RankThreads {
 public:
  explicit RankThreads(std::uint32_t ranks);  // throws does_not_fit where the system gives no more threads
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  // Calls body(rank) on every rank's own thread (with one rank: on this one); returns when all have returned.
  // Of what they throw, the cause is rethrown, with the rank it came from: ranks that were only stopped by
  // another's failure throw `cancelled`, which counts only where nothing else was thrown.
  void run(const std::function<void(std::uint32_t)>& body);

 private:
  void loop(std::uint32_t rank);
  void stop();

  std::uint32_t ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void(std::uint32_t)>* body_ = nullptr;
  std::uint64_t round_ = 0;
  std::uint32_t running_ = 0;
  bool ending_ = false;
  std::vector<std::exception_ptr> failures_;
  std::vector<std::thread> threads_;
};

}  // namespace terrace
