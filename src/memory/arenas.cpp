#include "src/memory/arenas.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "src/base/log.h"
#include "src/base/process_memory.h"
#include "src/base/units.h"

namespace terrace {
namespace {

void say_what_is_not_huge(const AlignedMemory& region) {
  if (!region.huge()) {
    logger()->warn("no huge pages for the host region ({}): disk transfers will be about half as fast; {}",
                   format_bytes(region.size()), huge_page_support().why);
    return;
  }
  const std::uint64_t whole = region.size() / kHugePageBytes * kHugePageBytes;
  const std::uint64_t huge = region.huge_bytes();
  if (huge < whole / 10 * 9) {
    logger()->warn(
        "only {} of the host region ({}) are in huge pages: disk transfers will be slower; memory is "
        "fragmented, which `echo 1 > /proc/sys/vm/compact_memory` may mend",
        format_bytes(huge), format_bytes(region.size()));
  }
}

// The limit that is named also serves to register the region with io_uring, whose ring counts too.
void say_what_is_not_locked(const AlignedMemory& region, int error) {
  const std::string part = region.locked_bytes() > 0
                               ? fmt::format(" beyond its first {}", format_bytes(region.locked_bytes()))
                               : "";
  logger()->warn("the host region of {} is not page-locked{}: raise `ulimit -l` to at least {} KiB ({})",
                 format_bytes(region.size()), part, div_up(region.size() + kMiB, kKiB), std::strerror(error));
}

}  // namespace

AlignedMemory allocate_host_region(std::uint64_t bytes) {
  AlignedMemory region(bytes, "the page-locked region");
  if (bytes == 0) return region;
  const int error = region.lock();
  say_what_is_not_huge(region);
  if (error != 0) say_what_is_not_locked(region, error);
  return region;
}

Arenas::Arenas(Device& device, std::uint64_t device_bytes, std::uint64_t host_bytes)
    : device_(device.allocate(device_bytes, "the device arena")),
      host_(std::make_shared<AlignedMemory>(allocate_host_region(host_bytes))) {}

Arenas::Arenas(Device& device, std::uint64_t device_bytes, std::shared_ptr<AlignedMemory> host,
               std::uint64_t host_offset)
    : device_(device.allocate(device_bytes, "the device arena")),
      host_(std::move(host)),
      host_offset_(host_offset) {}

}  // namespace terrace
