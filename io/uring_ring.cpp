#include "io/uring_ring.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>

#include "io/io_probe.h"
#include "src/base/fail.h"
#include "src/base/units.h"

namespace terrace {

int set_up_ring(unsigned entries, io_uring* ring) {
  // Completions are run when the one thread of the ring enters the kernel; nothing interrupts it.
  for (const unsigned flags : {IORING_SETUP_CLAMP | IORING_SETUP_COOP_TASKRUN, IORING_SETUP_CLAMP, 0u}) {
    io_uring_params params{};
    params.flags = flags;
    const int result = io_uring_queue_init_params(entries, ring, &params);
    if (result == -EINVAL && flags != 0) continue;  // an older kernel
    if (result < 0) return result;
    if ((params.features & IORING_FEAT_RW_CUR_POS) == 0) {  // came with plain reads and writes, Linux 5.6
      io_uring_queue_exit(ring);
      return -ENOSYS;
    }
    return 0;
  }
  return -EINVAL;
}

std::string memlock_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : format_bytes(limit.rlim_cur);
}

std::string ring_refusal(int error) {
  switch (error) {
    case EPERM:
      return "io_uring_setup: Operation not permitted (a container's seccomp filter, or "
             "kernel.io_uring_disabled)";
    case ENOSYS:
      return "io_uring_setup: this kernel has no io_uring, or an older one than Linux 5.6";
    case ENOMEM:
      return fmt::format(
          "io_uring_setup: Cannot allocate memory (ulimit -l is {}; kernels before Linux 5.12 count a ring's "
          "memory "
          "against it)",
          memlock_limit());
    case EMFILE:
    case ENFILE:
      return fmt::format("io_uring_setup: {} (ulimit -n)", std::strerror(error));
    default:
      return fmt::format("io_uring_setup: {}", std::strerror(error));
  }
}

IoSupport probe_io_uring() {
  io_uring ring{};
  const int result = set_up_ring(4, &ring);
  if (result < 0) return {false, ring_refusal(-result)};
  io_uring_queue_exit(&ring);
  return {true, "io_uring works"};
}

}  // namespace terrace
