#include "io/io_queue.h"

#include <cstdlib>
#include <mutex>

#include "src/base/fail.h"
#include "src/base/log.h"

namespace terrace {

std::unique_ptr<IoQueue> make_io_queue(const IoQueueOptions& options) {
  const char* forced = std::getenv("TERRACE_IO");
  const std::string kind = forced == nullptr ? "" : forced;
  if (kind == "uring") return make_uring_queue(options);
  if (kind == "threads") return make_thread_pool_queue(options);
  if (!kind.empty()) fail(ErrorCode::invalid_argument, "TERRACE_IO: wanted uring or threads, got '{}'", kind);
  static std::once_flag said_uring, said_threads;
  try {
    auto queue = make_uring_queue(options);
    std::call_once(said_uring, [] { logger()->info("I/O by io_uring"); });
    return queue;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    std::call_once(said_threads,
                   [&] { logger()->warn("I/O by threads, without io_uring: {}", error.what()); });
    return make_thread_pool_queue(options);
  }
}

}  // namespace terrace
