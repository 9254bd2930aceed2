// One persistent thread a lane.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "src/plan/program.h"

namespace terrace {

// Thread contract: run() from one thread at a time.
class LaneThreads {
 public:
  LaneThreads();  // throws does_not_fit where the system gives no more threads
  ~LaneThreads();
  LaneThreads(const LaneThreads&) = delete;
  LaneThreads& operator=(const LaneThreads&) = delete;

  // Calls body(lane) on every lane's own thread; returns when all have returned. body must not throw.
  void run(const std::function<void(Lane)>& body);

 private:
  void loop(Lane lane);
  void stop();

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void(Lane)>* body_ = nullptr;
  std::uint64_t round_ = 0;
  int running_ = 0;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace terrace
