// Small model shapes and placements for the planner's tests.
#pragma once

#include <string>
#include <vector>

#include "src/plan/plan.h"

namespace terrace::testing_models {

// An embedding, `blocks` blocks and a head; sizes that leave tails in blocks and chunks.
inline ModelShape tiny_model(int blocks, bool tied, DType dtype = DType::bf16) {
  ModelShape model;
  model.param_dtype = model.grad_dtype = dtype;
  UnitShape embedding;
  embedding.name = "embedding";
  embedding.tensors = {{"wte", 9000, 0}, {"wpe", 700, 0}};
  embedding.output_bytes = 2048;
  embedding.backward_reads_params = false;
  model.units.push_back(embedding);
  for (int b = 0; b < blocks; ++b) {
    UnitShape block;
    block.name = "h." + std::to_string(b);
    block.tensors = {{block.name + ".w", 20000u + static_cast<unsigned>(b), 0}, {block.name + ".b", 33, 1}};
    block.output_bytes = 2048;
    block.saved_bytes = 10000;
    block.forward_workspace_bytes = 4096;
    block.backward_workspace_bytes = 9000;
    block.forward_flops = 1e6;
    block.backward_flops = 2e6;
    model.units.push_back(block);
  }
  UnitShape head;
  head.name = "head";
  head.tensors = {{"ln_f.g", 64, 1}};
  if (tied) {
    head.shared_units = {0};
    head.shared_grad_bytes = 9000 * 4;
  } else {
    head.tensors.push_back({"lm_head", 9000, 0});
  }
  head.forward_workspace_bytes = 5000;
  head.backward_workspace_bytes = 12000;
  model.units.push_back(head);
  return model;
}

inline PlanRequest roomy_request(const ModelShape& model, std::uint32_t contributions,
                                 std::uint64_t chunk_numel) {
  PlanRequest request;
  request.model = model;
  request.contributions = contributions;
  request.chunk_numel = chunk_numel;
  request.budget_bytes = {64 * kMiB, 64 * kMiB, 256 * kMiB};
  request.nvme_tier = true;
  request.has_store = true;
  return request;
}

constexpr TierShares kAllDevice{1, 0, 0};
constexpr TierShares kAllHost{0, 1, 0};
constexpr TierShares kAllNvme{0, 0, 1};
constexpr TierShares kHalves{0, 0.5, 0.5};
constexpr TierShares kThirds{0.34, 0.33, 0.33};

}  // namespace terrace::testing_models
