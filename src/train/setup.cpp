#include "src/train/setup.h"

#include <spdlog/fmt/fmt.h>

#include "io/extent_store.h"
#include "src/base/fail.h"
#include "src/base/units.h"

namespace terrace {
namespace {

DType dtype_of(const std::string& name) {
  if (name == "bf16") return DType::bf16;
  if (name == "fp32") return DType::f32;
  fail(ErrorCode::unsupported, "precision '{}' is not supported; wanted bf16 or fp32", name);
}

std::optional<TierShares> shares_of(const PlacementShares& shares) {
  if (shares.automatic) return std::nullopt;
  return TierShares{shares.device, shares.host, shares.nvme};
}

}  // namespace

ModelSpec model_spec(const Config& config) {
  ModelSpec spec;
  const Config::Model& model = config.model;
  spec.layers = model.layers;
  spec.width = model.width;
  spec.heads = model.heads;
  spec.kv_heads = model.kv_heads;
  spec.mlp_width = model.mlp_width;
  spec.vocabulary = model.vocabulary;
  spec.context = model.context;
  spec.tied_head = model.tied_head;
  spec.norm = model.norm;
  spec.position = model.position;
  spec.mlp = model.mlp;
  spec.init_std = model.init_std;
  return spec;
}

DType compute_dtype(const Config& config) {
  return dtype_of(config.precision.compute);
}

DType grad_dtype(const Config& config) {
  return config.precision.grad == "auto" ? compute_dtype(config) : dtype_of(config.precision.grad);
}

PlanRequest plan_request(const Config& config, const ModelShape& model, std::uint64_t chunk_numel,
                         std::uint64_t free_nvme_bytes) {
  return plan_request(config, model, chunk_numel, free_nvme_bytes, host_overhead(config, model, chunk_numel));
}

PlanRequest plan_request(const Config& config, const ModelShape& model, std::uint64_t chunk_numel,
                         std::uint64_t free_nvme_bytes, const HostOverhead& overhead) {
  PlanRequest request;
  request.model = model;
  request.contributions = config.train.micro_batches;
  // Clipping wants the norm of the whole gradient first.
  request.updates = config.optimizer.clip_norm > 0 ? UpdateTime::next_forward : UpdateTime::backward;
  request.chunk_numel = chunk_numel;
  request.parameters = shares_of(config.placement.parameters);
  request.gradients = shares_of(config.placement.gradients);
  request.optimizer_state = shares_of(config.placement.optimizer_state);
  request.activations = shares_of(config.placement.activations);
  if (config.train.recompute == "always") request.recompute = Recompute::always;
  if (config.train.recompute == "never") request.recompute = Recompute::never;
  request.slack = config.placement.prefetch ? 2 : 0;
  request.ahead = config.placement.prefetch;
  request.has_store = !config.store.path.empty();
  request.two_extents = config.commit.every_steps != 0;
  request.nvme_tier = !config.tiers.nvme.empty();
  request.fixed = overhead.lines();
  if (request.has_store && request.two_extents) {
    request.fixed.push_back({Tier::nvme, "run state, two extents", kRunStateBytes});
  }
  request.budget_bytes = {config.tiers.device_bytes, config.tiers.host_bytes, 0};
  bool open_ended = config.tiers.nvme.empty() && request.has_store;
  std::uint64_t nvme_bytes = 0;
  for (const NvmePath& path : config.tiers.nvme) {
    nvme_bytes += path.size_bytes;
    open_ended = open_ended || path.size_bytes == 0;
  }
  request.budget_bytes[static_cast<std::size_t>(Tier::nvme)] =
      open_ended ? nvme_bytes + free_nvme_bytes : nvme_bytes;
  return request;
}

std::string refusal(const Plan& plan) {
  std::string text =
      "the run does not fit its budgets\n" + to_text(plan.ledger) + "the smallest budgets that would do:";
  static constexpr std::array<const char*, kTiers> kKeys{"tiers.device", "tiers.host",
                                                         "tiers.nvme (all sizes)"};
  for (int tier = 0; tier < kTiers; ++tier) {
    if (plan.least_bytes[tier] == 0) continue;
    text += fmt::format(" {} = {} bytes ({})", kKeys[tier], plan.least_bytes[tier],
                        format_bytes(plan.least_bytes[tier]));
  }
  return text;
}

LearningRateSchedule schedule_of(const Config& config) {
  LearningRateSchedule schedule;
  schedule.kind = parse_schedule_kind(config.optimizer.schedule);
  schedule.lr = config.optimizer.lr;
  schedule.warmup_steps = config.optimizer.warmup_steps;
  schedule.total_steps = config.train.steps;
  schedule.min_ratio = config.optimizer.min_lr_ratio;
  return schedule;
}

std::vector<AdamWHyper> groups_at(const Config& config, double lr) {
  const Config::Optimizer& optimizer = config.optimizer;
  AdamWHyper decayed{lr, optimizer.beta1, optimizer.beta2, optimizer.eps, optimizer.weight_decay};
  AdamWHyper plain = decayed;
  plain.weight_decay = 0;
  return {decayed, plain};
}

}  // namespace terrace
