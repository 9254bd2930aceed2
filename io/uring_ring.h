// Setting a ring up, and saying in words why the kernel refused.
#pragma once

#include <liburing.h>

#include <string>

namespace terrace {

// A ring of at least `entries` entries for one thread that submits and waits. 0 or -errno.
int set_up_ring(unsigned entries, io_uring* ring);

// Why set_up_ring gave -error.
std::string ring_refusal(int error);

// "8 MiB", "unlimited": RLIMIT_MEMLOCK, for messages.
std::string memlock_limit();

}  // namespace terrace
