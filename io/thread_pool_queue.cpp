// IoQueue by blocking preadv and pwritev on a few threads: where io_uring is not allowed.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>
#include <vector>

#include "io/piece_queue.h"
#include "src/base/fail.h"

namespace terrace {
namespace {

IoQueueOptions with_depth_of_threads(IoQueueOptions options) {
  if (options.threads == 0 || options.threads > 256) {
    fail(ErrorCode::invalid_argument, "I/O threads: wanted 1 to 256, got {}", options.threads);
  }
  options.depth = std::min(options.depth, options.threads);
  return options;
}

class ThreadPoolQueue final : public PieceQueue {
 public:
  explicit ThreadPoolQueue(const IoQueueOptions& options) : PieceQueue(with_depth_of_threads(options)) {
    try {
      start_threads();
    } catch (...) {
      stop_threads();
      throw;
    }
  }

  ~ThreadPoolQueue() override { stop_threads(); }

  std::string name() const override { return "threads"; }
  bool register_buffers(std::span<const std::span<std::byte>>) override {
    return true;
  }  // nothing to register

 private:
  void start_threads() {
    try {
      for (std::uint32_t t = 0; t < depth(); ++t) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error& error) {
      fail(ErrorCode::does_not_fit, "cannot start {} threads for the I/O queue: {}", depth(), error.what());
    }
  }

  // A slow disk must not hold all threads.
  void disk_added(const Lock&) override { start_threads(); }

  void stop_threads() {
    stop();
    ready_.notify_all();
    call_done();  // the threads may all be in the kernel
    for (std::thread& thread : threads_) thread.join();
    call_done();
  }

  void wake_mover(const Lock&) override { ready_.notify_one(); }
  void wake_done(const Lock&) override { ready_.notify_one(); }

  void call_done() {
    Lock guard = lock();
    while (run_done(guard)) {
    }
  }

  void work() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    Lock guard = lock();
    while (true) {
      ready_.wait(guard, [&] { return done_waits(guard) || piece_waits(guard) || stopping(guard); });
      if (run_done(guard)) continue;
      Piece* piece = next_piece(guard);
      if (piece == nullptr) {
        if (stopping(guard)) return;
        continue;
      }
      move(guard, *piece);
    }
  }

  void move(Lock& guard, Piece& piece) {
    bool goes_on = true;
    while (goes_on) {
      guard.unlock();
      const Call& call = piece.call;
      const auto offset = static_cast<off_t>(call.offset_bytes);
      const ssize_t moved = call.direction == IoDirection::read
                                ? ::pread(call.fd, call.data, call.bytes, offset)
                                : ::pwrite(call.fd, call.data, call.bytes, offset);
      const std::int64_t result = see(piece, moved < 0 ? -errno : moved);
      if (result == -EAGAIN) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      guard.lock();
      goes_on = end_call(guard, piece, result);
    }
    if (piece_waits(guard)) ready_.notify_one();
  }

  std::condition_variable ready_;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<IoQueue> make_thread_pool_queue(const IoQueueOptions& options) {
  return std::make_unique<ThreadPoolQueue>(options);
}

}  // namespace terrace
