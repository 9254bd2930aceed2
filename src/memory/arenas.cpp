#include "src/memory/arenas.h"

#include "src/base/log.h"
#include "src/base/units.h"

namespace terrace {

Arenas::Arenas(Device& device, std::uint64_t device_bytes, std::uint64_t host_bytes)
    : device_(device.allocate(device_bytes, "the device arena")),
      host_(host_bytes, "the page-locked region") {
  if (host_bytes == 0) return;
  if (!host_.huge()) {
    logger()->warn(
        "no huge pages for the host region ({}): disk transfers will be about half as fast; "
        "/sys/kernel/mm/transparent_hugepage/enabled must be madvise or always",
        format_bytes(host_bytes));
  }
  if (!host_.lock()) {
    logger()->warn("the host region of {} is not page-locked: raise `ulimit -l` to at least {} KiB",
                   format_bytes(host_bytes), div_up(host_bytes, kKiB));
  }
}

}  // namespace terrace
