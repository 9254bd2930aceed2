// The seam between a queue and the kernel. Tests inject faults here, below the code that resumes and checks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "io/io_queue.h"

namespace terrace {

struct IoCall {  // one call to the kernel
  IoDirection direction = IoDirection::read;
  const std::string& path;
  std::uint64_t unit_bytes = 1;  // lengths and offsets are multiples of it: more than 1 with O_DIRECT
  std::uint64_t offset_bytes = 0;
  std::span<std::byte> data;
};

// Thread contract: called from any thread of the queue, several at once. Must not throw.
class IoHooks {
 public:
  virtual ~IoHooks() = default;

  // How much of `call` the kernel is asked for: 1 to call.data.size() bytes. May hold the queue's lock: do
  // not block.
  virtual std::uint64_t ask_bytes(const IoCall& call) { return call.data.size(); }

  // What the queue sees in place of the kernel's `result` (bytes moved, or -errno). May sleep.
  virtual std::int64_t see_result(const IoCall&, std::int64_t result) { return result; }

  // The disk that a file lies on, by the number of its file system's device. Holds the queue's lock.
  virtual std::uint64_t disk_of(const std::string&, std::uint64_t device) { return device; }

  // As see_result, of fdatasync: 0 or -errno.
  virtual int see_flush(const std::string&, int result) { return result; }
};

}  // namespace terrace
