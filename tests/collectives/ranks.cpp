#include "tests/collectives/ranks.h"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace terrace {
namespace {

constexpr std::chrono::seconds kWatchdogLimit{150};

}  // namespace

struct Watchdog::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;
  std::thread thread;
};

Watchdog::Watchdog(std::string what) : state_(std::make_unique<State>()) {
  state_->thread = std::thread([state = state_.get(), what = std::move(what)] {
    std::unique_lock lock(state->mutex);
    if (state->changed.wait_for(lock, kWatchdogLimit, [&] { return state->ended; })) return;
    std::fprintf(stderr, "watchdog: %s is still running after %d s\n", what.c_str(),
                 static_cast<int>(kWatchdogLimit.count()));
    std::abort();
  });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->ended = true;
  }
  state_->changed.notify_all();
  state_->thread.join();
}

}  // namespace terrace
