// A thread that runs one job at a time.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace terrace {

// Thread contract: start() and wait() from one thread at a time.
class JobThread {
 public:
  JobThread();   // throws does_not_fit where the system gives no more threads
  ~JobThread();  // waits for the job
  JobThread(const JobThread&) = delete;
  JobThread& operator=(const JobThread&) = delete;

  // None may be under way. The job must not throw.
  void start(std::function<void()> job);
  // Returns when no job is under way.
  void wait();

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> job_;  // empty: none under way
  bool ending_ = false;
  std::thread thread_;  // last
};

}  // namespace terrace
