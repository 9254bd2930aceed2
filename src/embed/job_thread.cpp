#include "src/embed/job_thread.h"

#include <pthread.h>

#include <system_error>
#include <utility>

#include "src/base/fail.h"

namespace terrace {

JobThread::JobThread() {
  try {
    thread_ = std::thread([this] { loop(); });
  } catch (const std::system_error& error) {
    fail(ErrorCode::does_not_fit, "cannot start the optimizer's thread: {}", error.what());
  }
  pthread_setname_np(thread_.native_handle(), "terrace-step");
}

JobThread::~JobThread() {
  wait();
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void JobThread::start(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    check(!job_, "a job is under way");
    job_ = std::move(job);
  }
  changed_.notify_all();
}

void JobThread::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !job_; });
}

void JobThread::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ending_ || job_; });
    if (ending_) return;
    lock.unlock();
    job_();
    lock.lock();
    job_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace terrace
