// Models and a machine whose step takes times that are easy to tell.
#pragma once

#include "src/plan/step_costs.h"
#include "tests/plan/tiny_models.h"

namespace terrace::testing_models {

// Blocks whose forward takes 10 us, and backward 20, at 1 TFLOP/s; embedding and head a tenth of it.
inline ModelShape model_of(int blocks, bool tied = true) {
  ModelShape model = tiny_model(blocks, tied);
  for (UnitShape& unit : model.units) {
    unit.forward_flops = unit.tensors[0].name.starts_with("h.") ? 1e7 : 1e6;
    unit.backward_flops = 2 * unit.forward_flops;
  }
  return model;
}

// A block's state, 240 kB, takes 60 us each way at once.
inline MachineProfile machine_of(double disk_gbps = 4) {
  MachineProfile machine;
  machine.at(Lane::compute) = {100, 0, 1000, 0};
  machine.at(Lane::h2d).gbps = machine.at(Lane::d2h).gbps = 50;
  machine.at(Lane::optimizer).gbps = 100;
  machine.at(Lane::nvme) = disk_lane(disk_gbps * 0.75, disk_gbps * 1.5, disk_gbps);
  return machine;
}

inline PlanRequest on_disk(UpdateTime updates, std::uint64_t host_bytes) {
  PlanRequest request = roomy_request(model_of(10), 2, 8192);
  request.updates = updates;
  request.optimizer_state = kAllNvme;
  request.gradients = kAllHost;
  request.parameters = kAllDevice;
  request.budget_bytes[1] = host_bytes;
  return request;
}

}  // namespace terrace::testing_models
