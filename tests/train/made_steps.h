// Steps of a tiny plan, made up from simulated times.
#pragma once

#include "src/plan/overlap.h"
#include "src/runtime/runtime.h"
#include "tests/plan/tiny_models.h"

namespace terrace {

inline PlanRequest made_request(bool on_disk, UpdateTime updates = UpdateTime::next_forward) {
  ModelShape model = testing_models::tiny_model(6, false);
  for (UnitShape& unit : model.units) {
    unit.forward_flops = 1e7;
    unit.backward_flops = 2e7;
  }
  PlanRequest request = testing_models::roomy_request(model, 1, 8192);
  request.updates = updates;
  request.optimizer_state = on_disk ? testing_models::kAllNvme : testing_models::kAllHost;
  request.budget_bytes[1] = 4 * kMiB;
  return request;
}

inline MachineProfile made_machine() {
  MachineProfile machine;
  machine.at(Lane::compute).gflops = 1000;
  machine.at(Lane::h2d).gbps = machine.at(Lane::d2h).gbps = 50;
  machine.at(Lane::optimizer).gbps = 100;
  machine.at(Lane::nvme) = {4, 4, 0, 0};
  return machine;
}

// What the runtime would tell of a program that ran so, every time `slower` times as long. Without `pending`
// predicated operations were left out.
inline StepOutcome made_outcome(const Plan& plan, ProgramKind kind, bool pending = true, double slower = 1) {
  const StepProgram& program = plan.program(kind);
  const Timeline timeline = simulate(program, made_machine());
  StepOutcome outcome;
  outcome.kind = kind;
  outcome.verdict.finite = true;
  outcome.wall_us = timeline.step_us * slower;
  for (OpId id = 0; id < program.ops.size(); ++id) {
    const Op& op = program.ops[id];
    if (op.predicated && !pending) {
      outcome.ops.push_back({});
      continue;
    }
    outcome.ops.push_back({timeline.ops[id].start_us * slower, timeline.ops[id].end_us * slower});
    const Lane counted = op.lane == Lane::store ? Lane::nvme : op.lane;  // as the runtime counts
    LaneStats& lane = outcome.lanes[static_cast<std::size_t>(counted)];
    ++lane.operations;
    lane.bytes += op.bytes;
    lane.flops += op.flops;
  }
  for (const Lane lane : {Lane::compute, Lane::h2d, Lane::d2h, Lane::optimizer})
    outcome.lanes[static_cast<std::size_t>(lane)].busy_us = busy_us(outcome.ops, program, {lane});
  outcome.lanes[static_cast<std::size_t>(Lane::nvme)].busy_us =
      busy_us(outcome.ops, program, {Lane::nvme, Lane::store});
  return outcome;
}

}  // namespace terrace
