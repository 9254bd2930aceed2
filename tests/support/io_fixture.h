// What the tests of queues share: files to move bytes to, and a request that is waited for.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>

#include "io/io_hooks.h"
#include "io/io_queue.h"
#include "src/base/aligned_memory.h"
#include "tests/support/error_of.h"

namespace terrace {

// A file opened as asked, closed at the end.
class OpenFile {
 public:
  OpenFile(std::string path, int flags) : path_(std::move(path)), fd_(::open(path_.c_str(), flags, 0600)) {
    if (fd_ < 0) throw std::runtime_error(path_ + ": " + std::strerror(errno));
  }
  ~OpenFile() { ::close(fd_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int fd() const { return fd_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int fd_;
};

// Something that ends in a `done`, waited for. The error is handed over whole: the thread that called `done`
// keeps no reference, whose release ThreadSanitizer cannot see (libstdc++ is not instrumented).
class Awaited {
 public:
  std::function<void(std::exception_ptr)> done() {
    return [this](std::exception_ptr error) {
      const std::lock_guard guard(mutex_);
      error_ = std::move(error);
      ended_ = true;
      changed_.notify_all();
    };
  }
  // Returns when it has ended; throws its error.
  void wait() {
    std::unique_lock guard(mutex_);
    changed_.wait(guard, [&] { return ended_; });
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::exception_ptr error_;
};

// Submits and waits; throws what `done` was given.
inline void transfer(IoQueue& queue, IoDirection direction, IoFile file, std::uint64_t offset_bytes,
                     std::byte* data, std::uint64_t bytes, IoPriority priority = IoPriority::demand) {
  Awaited ended;
  queue.submit({direction, priority, file, offset_bytes, data, bytes, ended.done()});
  ended.wait();
}

inline void read(IoQueue& queue, IoFile file, std::uint64_t offset_bytes, std::byte* data,
                 std::uint64_t bytes) {
  transfer(queue, IoDirection::read, file, offset_bytes, data, bytes);
}

inline void write(IoQueue& queue, IoFile file, std::uint64_t offset_bytes, std::byte* data,
                  std::uint64_t bytes) {
  transfer(queue, IoDirection::write, file, offset_bytes, data, bytes);
}

inline void fill_random(std::byte* data, std::size_t bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(random());
}

// Holds every result back until it is opened.
class Gate final : public IoHooks {
 public:
  std::int64_t see_result(const IoCall&, std::int64_t result) override {
    std::unique_lock guard(mutex_);
    ++arrived_;
    changed_.notify_all();
    changed_.wait(guard, [&] { return open_; });
    return result;
  }
  void await_arrival() {
    std::unique_lock guard(mutex_);
    changed_.wait(guard, [&] { return arrived_ > 0; });
  }
  void open() {
    const std::lock_guard guard(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
  bool open_ = false;
};

}  // namespace terrace
