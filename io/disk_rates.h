// What the disk gives now: the roof of a step's state traffic.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/base/units.h"

namespace terrace {

// 1e9 bytes a second, of all folders together.
struct DiskRates {
  double read_gbps = 0;
  double write_gbps = 0;  // over space written before
  double both_gbps = 0;   // as many bytes read as written at once: the sum
  std::string method;     // "io_uring, O_DIRECT, requests of 1 MiB, depth 8, on 256 MiB in each folder"
};

inline constexpr std::uint64_t kDiskProbeBytes = 256 * kMiB;
inline constexpr std::uint64_t kLeastDiskProbeBytes = 8 * kMiB;

struct DiskProbeOptions {
  std::uint64_t bytes = kDiskProbeBytes;  // in each folder; rounded down to 2 MiB
  bool uring = true;                      // false: by the thread-pool queue, as where the kernel has no ring
};

// A raw loop on a nameless file in each folder, all folders at once: O_DIRECT where the file system has it,
// requests of 1 MiB, eight in flight a folder, from buffers in huge pages. Where the kernel refuses io_uring
// the thread-pool queue does the same; `method` says so, and why. Cost: writes 2 * bytes and reads 1.5 *
// bytes in each folder (a quarter of a second at 256 MiB and 2 GB/s), holds 16 MiB of memory and `bytes` of
// space a folder meanwhile, and leaves nothing. Throws not_found, io_failed or does_not_fit by path,
// invalid_argument for no folder or fewer than 8 MiB.
DiskRates measure_disk(const std::vector<std::string>& folders, const DiskProbeOptions& options = {});

}  // namespace terrace
