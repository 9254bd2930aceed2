// What a step costs by piece and lane, and what bounds it: the closed form over one plan. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/plan/closed_form.h"
#include "src/plan/plan.h"
#include "src/plan/simulate.h"

namespace terrace {

// The nvme lane of a profile from what the disk gives when only read, when only written, and at both at once
// (added up). A profile moves one transfer after another: its rates are those two, scaled such that as many
// bytes each way take the time that they take at once.
LaneProfile disk_lane(double read_gbps, double write_gbps, double both_gbps);

struct StepBound {
  double bound_us = 0;  // no order of the step's operations makes it shorter
  // "compute 80%, 20% the disk before the forward of h.3", "the cores: compute 70%, optimizer 30%", ...
  std::string limited_by;
  StepCosts costs;
  std::array<double, kLanes> lane_us{};      // busy; nvme counts the store lane too
  std::array<double, kLanes> resource_us{};  // by resource; checksums with the optimizer lane's
  double checksum_us = 0;
  std::uint64_t read_bytes = 0;  // of the disk
  std::uint64_t written_bytes = 0;
};

// Of the plan's program of this kind (train or train_commit). Operations take `op_us`, those of the disk
// lanes what the machine's rates give (0: no time); which lanes share cores, and checksums, are the machine's
// too.
//   piece      a unit. F_i, B_i: its forward, and its recomputation, backward and folds on the device, mean
//              over the contributions. The last unit's forward is a part of its backward.
//   Q_i, S     states on nvme; the pool of state slots
//   other traffic, by the flow of data: with a verdict, what the unit's first use needs from the disk (new
//              parameters on their way out and in, pending sums); while the window is closed, what follows
//              from its compute (sums, activations) and what it needs beyond what staging holds when it
//              begins. Without: what follows from a unit's last backward, and what must come before the first
//              of these.
// `cores_us`: how long the cores were seen at work in a step, where that is known. Two lanes at work at once
// slow each other down, so the sum of their times may be more than was needed: the less of the two counts.
// Throws invalid_argument where op_us has another length than the program. Cost: that of data_flow, some
// times.
StepBound step_bound(const ModelShape& model, const Plan& plan, ProgramKind kind,
                     const std::vector<double>& op_us, const MachineProfile& machine,
                     std::optional<double> cores_us = std::nullopt);

}  // namespace terrace
