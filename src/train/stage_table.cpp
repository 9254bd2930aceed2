#include "src/train/stage_table.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "src/base/units.h"
#include "src/plan/closed_form.h"

namespace terrace {
namespace {

// What a rank keeps of each class, wherever it lies.
struct Held {
  std::uint64_t parameters = 0, gradients = 0, states = 0, accumulators = 0;
  std::uint64_t total() const { return parameters + gradients + states + accumulators; }
};

Held held_by(const Plan& plan, const ModelShape& model) {
  Held held;
  const GradientSums sums(plan.ranks.shape(), plan.programs[0].contributions);
  for (std::uint32_t c = 0; c < plan.chunks.size(); ++c) {
    const std::uint64_t numel = plan.chunks[c].numel;
    if (plan.ranks.keeps_parameters(plan.rank, c)) held.parameters += numel * dtype_bytes(model.param_dtype);
    if (!plan.ranks.holds(plan.rank, c)) continue;
    held.states += stream_bytes(plan.chunks[c]);
    if (plan.chunks[c].master_only) continue;
    held.gradients += numel * dtype_bytes(model.grad_dtype);
    const bool own = plan.ranks.owner(c) == plan.rank;
    // An accumulator is fp32: all of it where it stands beside the sum, else what it is wider by.
    if (own && sums.separate_accumulator()) held.accumulators += numel * sizeof(float);
    if (!sums.replicated)
      held.accumulators += numel * (dtype_bytes(sums.sum_dtype(model)) - dtype_bytes(model.grad_dtype));
  }
  if (plan.ranks.shape().stage == Stage::optimizer) {  // room for the whole gradient
    const std::uint64_t whole = plan.pools[static_cast<std::size_t>(Pool::contribution)];
    held.gradients = std::max(held.gradients, whole);
  }
  for (const Slot& slot : plan.residents.slots) {
    if (slot.item == Item::local_sum) held.accumulators += slot.bytes;
  }
  return held;
}

// Elements that a rank sends by the closed form, where parts are equal; `kept` of the `padded` stay whole on
// every rank.
std::optional<std::uint64_t> closed_form_numel(const RankShape& shape, std::uint64_t padded,
                                               std::uint64_t kept, std::uint64_t contributions) {
  const std::uint64_t shards = shape.shard_size();
  if (padded % shape.ranks != 0 || kept % shards != 0 || contributions % shape.ranks != 0)
    return std::nullopt;
  const std::uint64_t rounds = contributions / shape.ranks;
  const Reduction order = Summands(shape, static_cast<std::uint32_t>(contributions)).order();
  const std::uint64_t unsent =
      shape.stage == Stage::parameters ? kept_whole_unsent_numel(kept, shards, rounds) : 0;
  return (shape.replicas > 1 ? hybrid_sent_numel(padded, shards, shape.replicas, rounds, order)
                             : sent_numel(shape.stage, padded, shape.ranks, rounds, order)) -
         unsent;
}

std::string name_of(const RankShape& shape) {
  if (shape.replicas > 1) return fmt::format("hybrid {}x{}", shape.shard_size(), shape.replicas);
  static constexpr std::array<const char*, 4> kNames{"0 no_shard", "1", "2 shard_grad_op", "3 full_shard"};
  return kNames[static_cast<std::size_t>(shape.stage)];
}

// The order that was asked for, where a stage has it.
Reduction reduction_of(Reduction wanted, const RankShape& shape) {
  const bool has = wanted == Reduction::last           ? shape.stage <= Stage::optimizer
                   : wanted == Reduction::hierarchical ? shape.replicas > 1
                                                       : true;
  return has ? wanted : Reduction::each;
}

std::string line_of(PlanRequest request, RankShape shape) {
  shape.reduction = reduction_of(request.ranks.reduction, shape);
  request.ranks = shape;
  const std::vector<Plan> plans = make_plans(request);
  if (!plans[0].fits) return fmt::format("  {:<16} does not fit the budgets\n", name_of(shape));
  Held most;
  std::uint64_t sent = 0;
  for (const Plan& plan : plans) {
    const Held held = held_by(plan, request.model);
    if (held.total() > most.total()) most = held;
    const auto lanes = lane_bytes(plan.program(ProgramKind::train));
    sent = std::max(sent, lanes[static_cast<std::size_t>(Lane::collective)]);
  }
  std::uint64_t padded = 0, kept = 0;
  for (std::uint32_t u = 0; u < request.model.units.size(); ++u) {
    padded += request.model.units[u].padded_numel();
    if (plans[0].ranks.keeps_whole(u)) kept += request.model.units[u].padded_numel();
  }
  const auto numel = closed_form_numel(shape, padded, kept, request.contributions);
  return fmt::format("  {:<16} {:>12} {:>12} {:>12} {:>12} {:>12} {:>12}\n", name_of(shape),
                     format_bytes(most.parameters), format_bytes(most.gradients), format_bytes(most.states),
                     format_bytes(most.accumulators), format_bytes(sent),
                     numel ? format_bytes(*numel * dtype_bytes(request.model.grad_dtype)) : "-");
}

}  // namespace

std::string stage_table(const PlanRequest& request) {
  std::string text = fmt::format("one of {} ranks, under each stage (kept between steps, wherever it lies)\n",
                                 request.ranks.ranks);
  text += fmt::format("  {:<16} {:>12} {:>12} {:>12} {:>12} {:>12} {:>12}\n", "stage", "parameters",
                      "gradients", "states", "accumulators", "sent a step", "closed form");
  std::vector<std::string> others;  // that do not have the order that was asked for
  const auto add = [&](const RankShape& shape) {
    text += line_of(request, shape);
    if (reduction_of(request.ranks.reduction, shape) != request.ranks.reduction)
      others.push_back(name_of(shape));
  };
  for (const Stage stage : {Stage::replicated, Stage::optimizer, Stage::gradients, Stage::parameters}) {
    add({stage, request.ranks.ranks, 1});
  }
  std::uint32_t replicas = request.ranks.replicas;
  if (replicas == 1 && request.ranks.ranks % 2 == 0 && request.ranks.ranks > 2) replicas = 2;
  if (replicas > 1) add({Stage::parameters, request.ranks.ranks, replicas});
  if (!others.empty()) {
    text += fmt::format("  these have no order {} and add up one by one: {}\n",
                        name_of(request.ranks.reduction), fmt::join(others, ", "));
  }
  return text;
}

}  // namespace terrace
