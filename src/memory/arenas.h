// The memory of a run: one arena on the device, one page-locked region on the host; both sized by the plan.
#pragma once

#include <cstdint>
#include <memory>

#include "src/base/aligned_memory.h"
#include "src/device/device.h"
#include "src/plan/program.h"

namespace terrace {

// The page-locked memory of a node: one region for all ranks of the process, in huge pages where the kernel
// gives them, page-locked as far as the limit allows it. What is refused is said once in the log, with what
// would allow it; the numbers of a run do not depend on it. Throws does_not_fit.
AlignedMemory allocate_host_region(std::uint64_t bytes);

// What one rank's slots lie in. Thread contract: built by one thread; data() may be read from any.
class Arenas {
 public:
  // A device arena, and a host region of its own.
  Arenas(Device& device, std::uint64_t device_bytes, std::uint64_t host_bytes);
  // A device arena, and the part of `host` (shared by ranks) that starts at `host_offset`.
  Arenas(Device& device, std::uint64_t device_bytes, std::shared_ptr<AlignedMemory> host,
         std::uint64_t host_offset);

  std::byte* data(Tier tier) const {
    return tier == Tier::device ? device_.data() : host_->data() + host_offset_;
  }
  const AlignedMemory& host() const { return *host_; }  // all of it
  const AlignedMemory& device() const { return device_; }
  std::uint64_t locked_bytes() const { return host_->locked_bytes(); }

 private:
  AlignedMemory device_;
  std::shared_ptr<AlignedMemory> host_;
  std::uint64_t host_offset_ = 0;
};

}  // namespace terrace
