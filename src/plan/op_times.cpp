#include "src/plan/op_times.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "src/base/fail.h"

namespace terrace {
namespace {

// The same work, whichever program does it.
using WorkKey = std::tuple<OpKind, std::uint32_t, std::uint32_t, std::uint32_t, std::uint64_t>;
WorkKey work_of(const Op& op) {
  return {op.kind, op.unit, op.chunk, op.micro_batch, op.bytes};
}

}  // namespace

std::vector<double> op_times_us(const StepProgram& program, const MachineProfile& machine) {
  std::vector<double> times;
  times.reserve(program.ops.size());
  for (const Op& op : program.ops) times.push_back(op_busy_us(op, machine));
  return times;
}

void ShortestTimes::add(ProgramKind kind, const std::vector<OpTime>& ops) {
  std::vector<double>& shortest = shortest_us_[static_cast<std::size_t>(kind)];
  if (shortest.empty()) shortest.assign(plan_.program(kind).ops.size(), -1);
  check(ops.size() == shortest.size(), "times of {} operations for a {} program of {}", ops.size(),
        name_of(kind), shortest.size());
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const double us = ops[i].end_us - ops[i].start_us;
    if (ops[i].end_us > 0 && (shortest[i] < 0 || us < shortest[i])) shortest[i] = us;
  }
}

std::vector<double> ShortestTimes::op_times_us(ProgramKind kind) const {
  std::map<WorkKey, double> by_work;
  struct Rate {
    double us = 0;
    double flops = 0;
    double bytes = 0;
  };
  std::array<Rate, kLanes> rates{};
  for (int other = 0; other < kProgramKinds; ++other) {
    for (std::size_t i = 0; i < shortest_us_[other].size(); ++i) {
      if (shortest_us_[other][i] < 0) continue;
      const Op& op = plan_.program(static_cast<ProgramKind>(other)).ops[i];
      const auto [found, added] = by_work.emplace(work_of(op), shortest_us_[other][i]);
      if (!added) found->second = std::min(found->second, shortest_us_[other][i]);
      Rate& rate = rates[static_cast<std::size_t>(op.lane)];
      rate.us += shortest_us_[other][i];
      rate.flops += op.flops;
      rate.bytes += static_cast<double>(op.bytes);
    }
  }
  std::vector<double> times;
  for (const Op& op : plan_.program(kind).ops) {
    const auto found = by_work.find(work_of(op));
    const Rate& rate = rates[static_cast<std::size_t>(op.lane)];
    if (found != by_work.end()) {
      times.push_back(found->second);
    } else if (op.flops > 0 && rate.flops > 0) {
      times.push_back(op.flops * rate.us / rate.flops);
    } else {
      times.push_back(rate.bytes > 0 ? static_cast<double>(op.bytes) * rate.us / rate.bytes : 0);
    }
  }
  return times;
}

Timeline simulate_times(const StepProgram& program, const std::vector<double>& op_us,
                        const MachineProfile& machine) {
  if (op_us.size() != program.ops.size()) {
    fail(ErrorCode::invalid_argument, "times of {} operations for a program of {}", op_us.size(),
         program.ops.size());
  }
  StepProgram timed;  // what the simulator reads of it, with a FLOP for each nanosecond
  for (OpId id = 0; id < program.ops.size(); ++id) {
    const Op& op = program.ops[id];
    Op& made = timed.ops.emplace_back();
    made.kind = op.kind;
    made.lane = op.lane;
    made.waits = op.waits;
    if (op.lane == Lane::nvme || op.lane == Lane::store) {
      made.bytes = op.bytes;
    } else {
      made.flops = op_us[id] * 1e3;
    }
  }
  MachineProfile rates = machine;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (lane != static_cast<int>(Lane::nvme)) rates.lanes[lane] = {0, 0, 1, 0};
  }
  return simulate(timed, rates);
}

}  // namespace terrace
