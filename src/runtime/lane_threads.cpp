#include "src/runtime/lane_threads.h"

#include <pthread.h>

#include <string>
#include <system_error>

#include "src/base/fail.h"

namespace terrace {

LaneThreads::LaneThreads() {
  for (int lane = 0; lane < kLanes; ++lane) {
    try {
      threads_.emplace_back([this, lane] { loop(static_cast<Lane>(lane)); });
    } catch (const std::system_error& error) {
      stop();
      fail(ErrorCode::does_not_fit, "cannot start a thread for each lane (got {} of {}): {}", lane, kLanes,
           error.what());
    }
    const std::string name = "terrace-" + std::string(name_of(static_cast<Lane>(lane))).substr(0, 7);
    pthread_setname_np(threads_.back().native_handle(), name.c_str());
  }
}

LaneThreads::~LaneThreads() {
  stop();
}

void LaneThreads::stop() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void LaneThreads::run(const std::function<void(Lane)>& body) {
  std::unique_lock lock(mutex_);
  body_ = &body;
  running_ = kLanes;
  ++round_;
  changed_.notify_all();
  changed_.wait(lock, [&] { return running_ == 0; });
}

void LaneThreads::loop(Lane lane) {
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ending_ || round_ != seen; });
    if (ending_) return;
    seen = round_;
    const auto& body = *body_;
    lock.unlock();
    body(lane);
    lock.lock();
    if (--running_ == 0) changed_.notify_all();
  }
}

}  // namespace terrace
