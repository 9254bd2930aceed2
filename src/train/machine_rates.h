// What the machine gives, measured now, and as a profile for the simulator.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "src/plan/simulate.h"
#include "terrace/config.h"
#include "terrace/plan.h"

namespace terrace {

// The lanes of the host device: compute, optimizer and copies share the cores, and checksums are made there.
// A disk that was not measured costs no time.
MachineProfile host_profile(const MachineRates& rates);

// The folders that hold what a run keeps on nvme.
std::vector<std::string> nvme_folders(const Config& config);

// Checksums of 1 MiB on all threads over `memory` (at least 1 MiB; more than a cache holds gives the rate of
// memory), undisturbed, in 1e9 bytes a second. Cost: 20 ms or more.
double measure_checksum_gbps(std::span<const std::byte> memory);

// "disk 2.9 read, 6.1 written, 2.0 + 2.0 both at once (io_uring, ...)", or why not.
std::string disk_text(const MachineRates& rates);

}  // namespace terrace
