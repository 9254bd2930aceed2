#include "src/engine/plan_request.h"

#include <spdlog/fmt/fmt.h>
#include <sys/stat.h>

#include <set>

#include "io/data_file.h"
#include "io/extent_store.h"
#include "src/base/fail.h"
#include "src/base/units.h"
#include "src/config/loss_scale_setting.h"

namespace terrace {
namespace {

std::optional<TierShares> shares_of(const PlacementShares& shares) {
  if (shares.automatic) return std::nullopt;
  return TierShares{shares.device, shares.host, shares.nvme};
}

// With one replica there is nothing between replicas: what is added up within it are the rounds.
Reduction reduction_of(const Config::Ranks& ranks, bool hybrid, std::uint32_t replicas) {
  const bool by_levels = ranks.hybrid_reduce == "hierarchical";
  if (by_levels && !hybrid) {
    fail(ErrorCode::invalid_argument,
         "ranks.hybrid_reduce = hierarchical with ranks.stage = {}: wanted "
         "hybrid_shard, whose replicas it is between",
         ranks.stage);
  }
  if (by_levels && ranks.reduce != "each") {
    fail(ErrorCode::invalid_argument,
         "ranks.hybrid_reduce = hierarchical with ranks.reduce = {}: wanted one of the two", ranks.reduce);
  }
  const bool whole_gradient = ranks.stage == "0" || ranks.stage == "no_shard" || ranks.stage == "1";
  if (ranks.reduce == "last" && !whole_gradient) {
    fail(
        ErrorCode::invalid_argument,
        "ranks.reduce = last with ranks.stage = {}: wanted stage 0 or 1, where a rank has room for its whole "
        "gradient between contributions",
        ranks.stage);
  }
  return by_levels                   ? (replicas > 1 ? Reduction::hierarchical : Reduction::grouped)
         : ranks.reduce == "last"    ? Reduction::last
         : ranks.reduce == "grouped" ? Reduction::grouped
                                     : Reduction::each;
}

}  // namespace

RankShape rank_shape(const Config& config) {
  const Config::Ranks& ranks = config.ranks;
  const bool hybrid = ranks.stage == "hybrid_shard";
  RankShape shape;
  shape.ranks = ranks.count;
  shape.replicas = ranks.replicas > 0 ? ranks.replicas : (hybrid ? 2 : 1);
  shape.stage = ranks.stage == "0" || ranks.stage == "no_shard"        ? Stage::replicated
                : ranks.stage == "1"                                   ? Stage::optimizer
                : ranks.stage == "2" || ranks.stage == "shard_grad_op" ? Stage::gradients
                                                                       : Stage::parameters;
  if (shape.replicas > 1 && !hybrid) {
    fail(ErrorCode::invalid_argument, "ranks.replicas = {} with ranks.stage = {}: wanted hybrid_shard",
         ranks.replicas, ranks.stage);
  }
  if (shape.ranks % shape.replicas != 0) {
    fail(ErrorCode::invalid_argument,
         "ranks.count = {} and ranks.replicas = {}: wanted replicas that divide the ranks", shape.ranks,
         shape.replicas);
  }
  shape.reduction = reduction_of(ranks, hybrid, shape.replicas);
  return shape;
}

PlanRequest plan_request(const Config& config, const ModelShape& model, std::uint64_t chunk_numel,
                         std::uint64_t free_bytes, const HostOverhead& overhead) {
  PlanRequest request;
  request.model = model;
  request.contributions = config.train.micro_batches;
  // Clipping wants the norm of the whole gradient first.
  request.updates = config.optimizer.clip_norm > 0 || loss_scale_setting(config).wants_verdict
                        ? UpdateTime::next_forward
                        : UpdateTime::backward;
  request.chunk_numel = chunk_numel;
  request.ranks = rank_shape(config);
  request.persist_below_numel = config.ranks.persist_below_numel;
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
  // Each process has libraries and tables of its own, and the host's budget is all processes'.
  const std::uint64_t processes =
      config.ranks.per_process > 0 ? config.ranks.count / config.ranks.per_process : 1;
  for (LedgerLine& line : request.fixed) line.bytes *= processes;
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
      open_ended ? nvme_bytes + free_bytes : nvme_bytes;
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

std::uint64_t free_nvme_bytes(const Config& config) {
  std::uint64_t sum = 0;
  std::set<dev_t> counted;
  for (const NvmePath& path : config.tiers.nvme) {
    struct stat status {};
    if (::stat(path.path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
      fail(ErrorCode::not_found, "tiers.nvme: {} is not a folder", path.path);
    }
    if (path.size_bytes == 0 && counted.insert(status.st_dev).second) sum += free_bytes(path.path);
  }
  return sum;
}

}  // namespace terrace
