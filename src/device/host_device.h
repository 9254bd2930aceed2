// The streams of the host device.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>

#include "src/device/device.h"

namespace terrace {

// Runs work at once, on the issuing thread: its lane is a thread already.
class InlineStream : public Stream {
 public:
  void copy(void* dst, const void* src, std::size_t bytes) override;
  void launch(std::function<void()> work) override;
  void wait(EventPtr event) override;
  EventPtr record() override;
  void synchronize() override {}
};

// Keeps work until somebody waits for it, then runs it, in order, on the thread that waits.
class LazyStream : public Stream, public std::enable_shared_from_this<LazyStream> {
 public:
  void copy(void* dst, const void* src, std::size_t bytes) override;
  void launch(std::function<void()> work) override;
  void wait(EventPtr event) override;
  EventPtr record() override;
  void synchronize() override;
  // Drops what has not run: after a failure streams would keep each other alive through the events in their
  // queues.
  void abandon();

 private:
  class LazyEvent;
  void run_until(std::uint64_t count);

  std::mutex running_;  // held by the thread that runs work
  std::mutex queue_;
  std::deque<std::function<void()>> work_;
  std::uint64_t issued_ = 0;
  std::atomic<std::uint64_t> done_{0};
  std::exception_ptr failure_;
};

}  // namespace terrace
