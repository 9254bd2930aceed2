#include "src/plan/step_costs.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "src/base/fail.h"
#include "src/plan/data_flow.h"

namespace terrace {
namespace {

std::size_t index(Lane lane) {
  return static_cast<std::size_t>(lane);
}

bool on_disk(Lane lane) {
  return lane == Lane::nvme || lane == Lane::store;
}

bool moves_state(OpKind kind) {
  return kind == OpKind::read_state || kind == OpKind::write_state;
}

// Fills the parts of StepCosts that stand in the program.
class Costs {
 public:
  Costs(const ModelShape& model, const Plan& plan, const StepProgram& program,
        const std::vector<double>& op_us, const MachineProfile& machine)
      : model_(model), plan_(plan), program_(program), machine_(machine), flow_(data_flow(program)) {
    const std::size_t units = model.units.size();
    costs_.forward_s.assign(units, 0);
    costs_.backward_s.assign(units, 0);
    costs_.state_bytes.assign(units, 0);
    costs_.other_disk_s.assign(units, 0);
    costs_.contributions = program.contributions;
    const double each_s = 1e-6 / program.contributions;
    for (OpId id = 0; id < program.ops.size(); ++id) {
      const Op& op = program.ops[id];
      if (op.lane != Lane::compute) continue;
      compute_.push_back(id);
      check(op.unit < units, "operation {} computes unit {} of {}", id, op.unit, units);
      (op.kind == OpKind::forward ? costs_.forward_s : costs_.backward_s)[op.unit] += op_us[id] * each_s;
    }
    const LaneProfile& disk = machine.at(Lane::nvme);
    if (disk.gbps > 0 && disk.write_gbps > 0) {
      costs_.disk_bytes_per_s = 2e9 / (1 / disk.gbps + 1 / disk.write_gbps);
      for (std::size_t c = 0; c < plan.chunks.size(); ++c) {
        if (plan.placement.optimizer_state[c] != Tier::nvme || plan.chunks[c].master_only) continue;
        costs_.state_bytes[plan.chunks[c].unit] += static_cast<double>(state_slot_bytes(plan.chunks[c]));
      }
    }
    costs_.state_slot_bytes = static_cast<double>(pool_bytes(Pool::state_staging));
  }

  StepCosts take() {
    if (program_.updates == UpdateTime::next_forward) {
      add_with_verdict();
    } else {
      add_without_verdict();
    }
    return std::move(costs_);
  }

 private:
  std::uint64_t pool_bytes(Pool pool) const { return plan_.pools[static_cast<std::size_t>(pool)]; }

  // Seconds of the disk's, states left out: they have terms of their own.
  double disk_s(OpId id) const {
    const Op& op = program_.ops[id];
    if (!on_disk(op.lane) || moves_state(op.kind)) return 0;
    return op_busy_us(op, machine_) * 1e-6;
  }

  // Place in compute_ of the last unit's backward of a contribution.
  std::size_t first_backward(std::uint32_t micro_batch) const {
    for (std::size_t i = 0; i < compute_.size(); ++i) {
      const Op& op = program_.ops[compute_[i]];
      if (op.kind == OpKind::backward && op.micro_batch == micro_batch) return i;
    }
    return compute_.size();
  }

  void add_with_verdict() {
    const std::size_t closed = first_backward(0);
    std::vector<bool> before(program_.ops.size()), after(program_.ops.size());
    for (std::size_t i = 0; i < compute_.size() && i <= closed; ++i) {
      double& sum = costs_.other_disk_s[program_.ops[compute_[i]].unit];
      mark_reached(flow_, compute_[i], before, [&](OpId id) { sum += disk_s(id); });
    }
    const DataFlow users = reversed(flow_);
    for (std::size_t i = closed; i < compute_.size(); ++i) {
      mark_reached(users, compute_[i], after, [&](OpId id) { costs_.closed_disk_s += disk_s(id); });
    }
    // What the closed window reads may have been read before it began, as far as there was room.
    std::array<std::uint64_t, 2> read{};  // parameters, activations
    for (std::size_t i = closed; i < compute_.size(); ++i) {
      mark_reached(flow_, compute_[i], before, [&](OpId id) {
        const Op& op = program_.ops[id];
        if (op.kind == OpKind::read_param && !after[id]) read[0] += op.bytes;
        if (op.kind == OpKind::read_activation && !after[id]) read[1] += op.bytes;
      });
    }
    const std::array<std::uint64_t, 2> room{
        pool_bytes(Pool::piece) + pool_bytes(Pool::param_staging),
        pool_bytes(Pool::fetched_activation) + pool_bytes(Pool::activation_staging)};
    for (std::size_t i = 0; i < read.size(); ++i) {
      Op rest;
      rest.kind = OpKind::read_param;
      rest.lane = Lane::nvme;
      rest.bytes = read[i] > room[i] ? read[i] - room[i] : 0;
      costs_.closed_disk_s += op_busy_us(rest, machine_) * 1e-6;
    }
  }

  void add_without_verdict() {
    const std::size_t open = first_backward(program_.contributions - 1);
    std::vector<bool> before(program_.ops.size()), after(program_.ops.size());
    for (std::size_t i = 0; i < compute_.size() && i <= open; ++i) {
      mark_reached(flow_, compute_[i], before, [&](OpId id) { costs_.closed_disk_s += disk_s(id); });
    }
    const DataFlow users = reversed(flow_);
    for (std::size_t i = compute_.size(); i-- > open;) {
      double& sum = costs_.other_disk_s[program_.ops[compute_[i]].unit];
      mark_reached(users, compute_[i], after, [&](OpId id) { sum += disk_s(id); });
    }
  }

  const ModelShape& model_;
  const Plan& plan_;
  const StepProgram& program_;
  const MachineProfile& machine_;
  DataFlow flow_;
  std::vector<OpId> compute_;
  StepCosts costs_;
};

std::string amount(std::uint64_t bytes) {
  const auto count = static_cast<double>(bytes);
  return count < 1e9 ? fmt::format("{:.3g} MB", count / 1e6) : fmt::format("{:.3g} GB", count / 1e9);
}

// What the resource's lanes do, where it is the busiest.
std::string resource_words(const StepBound& bound, const MachineProfile& machine, std::uint8_t resource) {
  std::vector<std::pair<std::string, double>> parts;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (machine.resource_of(static_cast<Lane>(lane)) != resource || bound.lane_us[lane] == 0) continue;
    parts.emplace_back(name_of(static_cast<Lane>(lane)), bound.lane_us[lane]);
  }
  if (machine.resource_of(Lane::optimizer) == resource && bound.checksum_us > 0)
    parts.emplace_back("checksums", bound.checksum_us);
  if (parts.size() == 1 && machine.resource_of(Lane::nvme) == resource) {
    const double us = bound.lane_us[index(Lane::nvme)];
    return fmt::format("the disk: {} read and {} written a step, {:.1f} + {:.1f} GB/s",
                       amount(bound.read_bytes), amount(bound.written_bytes),
                       static_cast<double>(bound.read_bytes) / us / 1e3,
                       static_cast<double>(bound.written_bytes) / us / 1e3);
  }
  if (parts.size() == 1) return parts[0].first;
  double all = 0;
  for (const auto& [name, us] : parts) all += us;
  std::string words;
  for (const auto& [name, us] : parts) {
    if (us < 0.005 * all) continue;
    words += fmt::format("{} {} {:.0f}%", words.empty() ? "the cores:" : ",", name, 100 * us / all);
  }
  return words;
}

std::string window_words(const ModelShape& model, const BoundParts& parts, UpdateTime updates) {
  const bool verdict = updates == UpdateTime::next_forward;
  const auto percent = [&](double s) { return 100 * s / parts.bound_s; };
  const bool waits = percent(parts.piece_disk_s) >= 1;
  const std::string window =
      fmt::format("{:.0f}% the disk {} of {}", percent(parts.piece_disk_s),
                  verdict ? "before the forward" : "after the backward", model.units[parts.piece].name);
  if (parts.closed_by_disk) {
    return fmt::format("the disk: {:.0f}% sums, activations and parameters during {}{}",
                       percent(parts.closed_s), verdict ? "backward" : "forward", waits ? ", " + window : "");
  }
  return waits ? fmt::format("compute {:.0f}%, {}", 100 - percent(parts.piece_disk_s), window) : "compute";
}

}  // namespace

LaneProfile disk_lane(double read_gbps, double write_gbps, double both_gbps) {
  if (!(read_gbps > 0) || !(write_gbps > 0) || !(both_gbps > 0)) {
    fail(ErrorCode::invalid_argument, "rates of a disk: reading {}, writing {}, both {} GB/s; wanted above 0",
         read_gbps, write_gbps, both_gbps);
  }
  const double scale = both_gbps * (1 / read_gbps + 1 / write_gbps) / 2;
  return {read_gbps * scale, write_gbps * scale, 0, 0};
}

StepBound step_bound(const ModelShape& model, const Plan& plan, ProgramKind kind,
                     const std::vector<double>& op_us, const MachineProfile& machine,
                     std::optional<double> cores_us) {
  const StepProgram& program = plan.program(kind);
  if (op_us.size() != program.ops.size()) {
    fail(ErrorCode::invalid_argument, "times of {} operations for a program of {}", op_us.size(),
         program.ops.size());
  }
  StepBound bound;
  for (OpId id = 0; id < program.ops.size(); ++id) {
    const Op& op = program.ops[id];
    if (!on_disk(op.lane)) {
      bound.lane_us[index(op.lane)] += op_us[id];
      continue;
    }
    bound.lane_us[index(Lane::nvme)] += op_busy_us(op, machine);
    (writes_nvme(op.kind) ? bound.written_bytes : bound.read_bytes) += op.bytes;
  }
  for (int lane = 0; lane < kLanes; ++lane)
    bound.resource_us[machine.resource_of(static_cast<Lane>(lane))] += bound.lane_us[lane];
  if (machine.checksum_gbps > 0) {
    bound.checksum_us =
        static_cast<double>(bound.read_bytes + bound.written_bytes) / (machine.checksum_gbps * 1e3);
    bound.resource_us[machine.resource_of(Lane::optimizer)] += bound.checksum_us;
  }
  double& cores = bound.resource_us[machine.resource_of(Lane::compute)];
  if (cores_us) cores = std::min(cores, *cores_us);
  const auto busiest = std::max_element(bound.resource_us.begin(), bound.resource_us.end());

  bound.costs = Costs(model, plan, program, op_us, machine).take();
  bound.costs.busiest_lane_s = *busiest * 1e-6;
  const BoundParts parts = program.updates == UpdateTime::next_forward
                               ? bound_parts_with_verdict(bound.costs)
                               : bound_parts_without_verdict(bound.costs);
  bound.bound_us = parts.bound_s * 1e6;
  bound.limited_by =
      parts.by_busiest_lane
          ? resource_words(bound, machine, static_cast<std::uint8_t>(busiest - bound.resource_us.begin()))
          : window_words(model, parts, program.updates);
  return bound;
}

}  // namespace terrace
