#include "src/base/parallel_for.h"

#include <sched.h>
#include <xmmintrin.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#ifndef TERRACE_TSAN
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#endif

namespace terrace {
namespace {

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

std::atomic<int> requested_threads{0};

// Round to nearest even, no flush to zero, no denormals-are-zero, exceptions masked.
void set_float_mode() {
  _mm_setcsr(0x1F80);
}

// The first exception of any piece; rethrown by the caller once all pieces are done.
class FirstError {
 public:
  void keep() {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::current_exception();
  }
  void rethrow() {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

void run_pieces(std::atomic<std::size_t>& next, std::size_t count,
                const std::function<void(std::size_t)>& body, FirstError& error) {
  set_float_mode();
  for (std::size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
    try {
      body(i);
    } catch (...) {
      error.keep();
    }
  }
}

}  // namespace

void set_parallel_threads(int threads) {
  requested_threads.store(std::max(0, threads));
}

int parallel_threads() {
  const int threads = requested_threads.load();
  static const int cores = usable_cores();
  return threads > 0 ? threads : cores;
}

void parallel_for(std::size_t count, const std::function<void(std::size_t)>& body) {
  if (count == 0) return;
  std::atomic<std::size_t> next{0};
  FirstError error;
  const std::size_t workers = std::min<std::size_t>(count, static_cast<std::size_t>(parallel_threads()));
  if (workers <= 1) {
    run_pieces(next, count, body, error);
  } else {
#ifdef TERRACE_TSAN
    std::vector<std::thread> threads;
    for (std::size_t t = 1; t < workers; ++t) {
      threads.emplace_back([&] { run_pieces(next, count, body, error); });
    }
    run_pieces(next, count, body, error);
    for (auto& thread : threads) thread.join();
#else
    // One arena a width, shared by all callers: two lanes that compute at once share the cores instead of
    // doubling the threads.
    static std::mutex mutex;
    static std::vector<std::unique_ptr<tbb::task_arena> > arenas;
    tbb::task_arena* arena = nullptr;
    {
      const std::lock_guard lock(mutex);
      const auto width = static_cast<std::size_t>(parallel_threads());
      if (arenas.size() <= width) arenas.resize(width + 1);
      if (!arenas[width]) {
        // More threads than cores are allowed when asked for; without this oneTBB limits them and prints a
        // warning.
        static std::unique_ptr<tbb::global_control> limit;
        if (width >= arenas.size() - 1) {
          limit =
              std::make_unique<tbb::global_control>(tbb::global_control::max_allowed_parallelism, width + 1);
        }
        arenas[width] = std::make_unique<tbb::task_arena>(static_cast<int>(width));
      }
      arena = arenas[width].get();
    }
    arena->execute([&] {
      tbb::parallel_for(
          std::size_t{0}, workers, [&](std::size_t) { run_pieces(next, count, body, error); },
          tbb::simple_partitioner{});
    });
#endif
  }
  error.rethrow();
}

}  // namespace terrace
