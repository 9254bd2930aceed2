// The roof that I/O is measured against: an io_uring loop with nothing around it.
#pragma once

#include <liburing.h>

#include <cstdint>

#include "io/data_file.h"
#include "src/base/aligned_memory.h"
#include "src/base/units.h"

namespace terrace {

struct RawWork {
  bool reads = false;
  bool writes = false;
};

// One ring, registered file, registered buffers in huge pages, requests of 1 MiB. Thread contract: one
// thread.
class RawUringLoop {
 public:
  static constexpr std::uint64_t kRequestBytes = kMiB;

  // `memory`, at least 2 MiB: half for reads, half for writes. Both must outlive the loop. Throws unsupported
  // with the system's reason where the kernel refuses a ring.
  RawUringLoop(const DataFile& file, const AlignedMemory& memory, unsigned depth);
  ~RawUringLoop();
  RawUringLoop(const RawUringLoop&) = delete;
  RawUringLoop& operator=(const RawUringLoop&) = delete;

  bool registered() const { return registered_; }  // the buffers

  // Moves `bytes` (a multiple of 1 MiB) in each direction of `work`: reads from the file's begin, writes from
  // `write_offset_bytes` on. Throws io_failed by path; nothing is under way then. The bytes written are
  // whatever lies in the buffers.
  void run(const RawWork& work, std::uint64_t bytes, std::uint64_t write_offset_bytes);

 private:
  void prepare(bool read, std::uint64_t index, std::uint64_t first_bytes);

  const DataFile& file_;
  const AlignedMemory& memory_;
  unsigned depth_;
  std::uint64_t half_bytes_;
  bool registered_ = false;
  io_uring ring_{};
};

}  // namespace terrace
