#include "src/plan/simulate.h"

#include <algorithm>
#include <limits>

#include "src/base/fail.h"

namespace terrace {
namespace {

double bytes_us(double bytes, double gbps) {
  return gbps > 0 ? bytes / (gbps * 1e3) : 0;
}

void check_profile(const MachineProfile& machine) {
  for (std::size_t i = 0; i < kLanes; ++i) {
    const LaneProfile& lane = machine.lanes[i];
    const bool good = lane.gbps >= 0 && lane.write_gbps >= 0 && lane.gflops >= 0 && lane.latency_us >= 0;
    if (!good || machine.resource[i] >= kLanes || !(machine.checksum_gbps >= 0)) {
      fail(ErrorCode::invalid_argument, "machine profile: lane {} has a negative rate or a resource above {}",
           name_of(static_cast<Lane>(i)), kLanes - 1);
    }
  }
}

}  // namespace

void MachineProfile::share(const std::vector<Lane>& together) {
  if (together.empty()) return;
  const std::uint8_t first = resource[static_cast<std::size_t>(together[0])];
  for (const Lane lane : together) resource[static_cast<std::size_t>(lane)] = first;
}

double op_busy_us(const Op& op, const MachineProfile& machine) {
  const LaneProfile& lane = machine.at(op.lane);
  const double gbps = writes_nvme(op.kind) ? lane.write_gbps : lane.gbps;
  const double flops_us = lane.gflops > 0 ? op.flops / (lane.gflops * 1e3) : 0;
  const double work_us = std::max(bytes_us(static_cast<double>(op.bytes), gbps), flops_us);
  return !completes_in_order(op.lane) ? work_us : lane.latency_us + work_us;
}

Timeline simulate(const StepProgram& program, const MachineProfile& machine) {
  check_profile(machine);
  constexpr double kNever = std::numeric_limits<double>::infinity();
  Timeline timeline;
  timeline.ops.assign(program.ops.size(), OpTime{kNever, kNever});

  std::array<std::vector<OpId>, kLanes> queue;
  for (OpId id = 0; id < program.ops.size(); ++id) {
    for (const OpId wait : program.ops[id].waits) check(wait < id, "operation {} waits for {}", id, wait);
    queue[static_cast<std::size_t>(program.ops[id].lane)].push_back(id);
  }
  std::array<std::size_t, kLanes> next{};
  std::array<double, kLanes> free_at{};  // by resource
  // What is scheduled next could start first of all that is ready; what is not ready yet waits for something
  // that starts later still. So times are settled in order of starting.
  for (std::size_t left = program.ops.size(); left > 0; --left) {
    std::size_t best = kLanes;
    double best_start = kNever;
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      if (next[lane] == queue[lane].size()) continue;
      double start = free_at[machine.resource_of(static_cast<Lane>(lane))];
      for (const OpId wait : program.ops[queue[lane][next[lane]]].waits) {
        start = std::max(start, timeline.ops[wait].end_us);  // kNever: it has not run
      }
      const bool earlier = best == kLanes || start < best_start ||
                           (start == best_start && queue[lane][next[lane]] < queue[best][next[best]]);
      if (!earlier) continue;
      best = lane;
      best_start = start;
    }
    check(best_start < kNever, "no operation of the program can start");
    const OpId id = queue[best][next[best]++];
    const Op& op = program.ops[id];
    const double busy = op_busy_us(op, machine);
    const std::uint8_t resource = machine.resource_of(op.lane);
    double& free = free_at[resource];
    free = best_start + busy;
    const double latency = !completes_in_order(op.lane) ? machine.at(Lane::nvme).latency_us : 0;
    timeline.ops[id] = {best_start, free + latency};
    timeline.step_us = std::max(timeline.step_us, timeline.ops[id].end_us);
    timeline.lane_busy_us[best] += busy;
    timeline.resource_busy_us[resource] += busy;
    if (!completes_in_order(op.lane)) {
      timeline.resource_busy_us[machine.resource_of(Lane::optimizer)] +=
          bytes_us(static_cast<double>(op.bytes), machine.checksum_gbps);
    }
  }
  const auto& busy = timeline.lane_busy_us;
  timeline.busiest_lane = static_cast<Lane>(std::max_element(busy.begin(), busy.end()) - busy.begin());
  timeline.busiest_resource_us =
      *std::max_element(timeline.resource_busy_us.begin(), timeline.resource_busy_us.end());
  return timeline;
}

}  // namespace terrace
