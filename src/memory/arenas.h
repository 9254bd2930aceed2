// The memory of a run: one arena on the device, one page-locked region on the host; both sized by the plan.
#pragma once

#include <array>
#include <cstdint>

#include "src/base/aligned_memory.h"
#include "src/device/device.h"
#include "src/plan/program.h"

namespace terrace {

// Thread contract: built by one thread; data() may be read from any.
class Arenas {
 public:
  // Allocates both, in huge pages where the kernel gives them, and page-locks the host region as far as the
  // limit allows it. What is refused is said once in the log, with what would allow it; the numbers of a run
  // do not depend on it. Throws does_not_fit.
  Arenas(Device& device, std::uint64_t device_bytes, std::uint64_t host_bytes);

  std::byte* data(Tier tier) const { return tier == Tier::device ? device_.data() : host_.data(); }
  const AlignedMemory& host() const { return host_; }
  const AlignedMemory& device() const { return device_; }
  std::uint64_t locked_bytes() const { return host_.locked_bytes(); }

 private:
  AlignedMemory device_;
  AlignedMemory host_;
};

}  // namespace terrace
