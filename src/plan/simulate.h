// How long a step program would take on a machine, and what bounds it. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "src/plan/program.h"

namespace terrace {

// An operation takes latency_us + the longer of bytes / gbps and flops / gflops. A rate of 0 costs no time.
struct LaneProfile {
  double gbps = 0;        // 1e9 bytes a second; of nvme (both disk lanes): reading
  double write_gbps = 0;  // nvme only: writing
  double gflops = 0;
  double latency_us = 0;  // of nvme: overlaps with the transfers behind it
};

struct MachineProfile {
  std::array<LaneProfile, kLanes> lanes{};
  // Lanes with the same number share one resource, which serves one operation at a time: the one that could
  // start first, at a tie the earlier in the list. By default each lane has its own.
  std::array<std::uint8_t, kLanes> resource{0, 1, 2, 3, 4, 5, 4, 6};
  // Checksums of what nvme moves, charged to the busy time of the optimizer lane's resource; 0 = none.
  double checksum_gbps = 0;

  // The store lane has the rates and the resource of nvme.
  static constexpr Lane profile_of(Lane lane) { return lane == Lane::store ? Lane::nvme : lane; }

  LaneProfile& at(Lane lane) { return lanes[static_cast<std::size_t>(profile_of(lane))]; }
  std::uint8_t resource_of(Lane lane) const { return resource[static_cast<std::size_t>(profile_of(lane))]; }
  const LaneProfile& at(Lane lane) const { return lanes[static_cast<std::size_t>(profile_of(lane))]; }
  // Puts these lanes on one resource.
  void share(const std::vector<Lane>& together);
};

struct OpTime {
  double start_us = 0;
  double end_us = 0;
};

struct Timeline {
  std::vector<OpTime> ops;  // by operation
  double step_us = 0;       // when the last operation ends
  std::array<double, kLanes> lane_busy_us{};
  std::array<double, kLanes> resource_busy_us{};  // by resource number
  Lane busiest_lane = Lane::compute;
  double busiest_resource_us = 0;  // no order of operations makes the step shorter than this
};

// Runs the program as the runtime would: each lane starts its operations in list order, when what they wait
// for has completed; all but the disk lanes (nvme, store) complete one before starting the next; these
// move the bytes of one after another and let latencies overlap. What is pending is done, not left out. Every
// wait must name an earlier operation (else internal). Throws invalid_argument for a profile with a negative
// number or a resource number of kLanes or more. Cost: O(operations * lanes + waits).
Timeline simulate(const StepProgram& program, const MachineProfile& machine);

// How long the operation keeps its lane busy, in microseconds (of nvme: without the latency).
double op_busy_us(const Op& op, const MachineProfile& machine);

}  // namespace terrace
