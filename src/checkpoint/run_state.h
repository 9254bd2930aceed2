// What a commit keeps beside the chunks: where the run stands.
#pragma once

#include <cstdint>
#include <string>

namespace terrace {

struct RunState {
  std::uint64_t step = 0;     // iterations done, dropped and skipped ones too
  std::string step_line;      // the metrics of that step: a kill may come between the commit and their line
  std::string sampler;        // DistributedSampler::save_state
  std::string loss_scale;     // LossScale::save; empty in a store of before it was kept
  std::uint64_t updates = 0;  // steps that updated: what the learning rate's schedule counts
};

std::string to_json(const RunState& state);
// Throws corrupt for text that to_json did not write.
RunState run_state_from_json(const std::string& json);

}  // namespace terrace
