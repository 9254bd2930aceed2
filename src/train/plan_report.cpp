#include "terrace/plan.h"

#include <spdlog/fmt/fmt.h>

#include <array>

#include "src/base/units.h"
#include "src/model/describe.h"
#include "src/plan/check_plan.h"
#include "src/train/setup.h"

namespace terrace {
namespace {

// How many bytes of a class lie on each tier.
template <typename Bytes>
std::string where(const std::vector<Tier>& tiers, const Bytes& bytes_of) {
  std::array<std::uint64_t, kTiers> sums{};
  for (std::size_t i = 0; i < tiers.size(); ++i) sums[static_cast<std::size_t>(tiers[i])] += bytes_of(i);
  std::string text;
  for (int tier = 0; tier < kTiers; ++tier) {
    if (sums[tier] == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(static_cast<Tier>(tier)),
                        format_bytes(sums[tier]));
  }
  return text;
}

std::string placement_text(const Plan& plan, const PlanRequest& request) {
  const ModelShape& model = request.model;
  const auto chunk_bytes = [&](std::uint64_t element) {
    return [&plan, element](std::size_t c) { return plan.chunks[c].numel * element; };
  };
  std::string text = "where each class of data goes\n";
  text += fmt::format("  {:<20} {}\n", "parameters",
                      where(plan.placement.parameters, chunk_bytes(dtype_bytes(model.param_dtype))));
  text += fmt::format(
      "  {:<20} {}\n", "gradients",
      where(plan.placement.gradients, chunk_bytes(sum_element_bytes(model, request.contributions))));
  text +=
      fmt::format("  {:<20} {}\n", "optimizer state", where(plan.placement.optimizer_state, chunk_bytes(12)));
  text += fmt::format("  {:<20} {}\n", "activations", where(plan.placement.activations, [&](std::size_t u) {
                        return model.units[u].output_bytes;
                      }));
  std::size_t recomputed = 0;
  for (std::size_t u = 1; u + 1 < model.units.size(); ++u) recomputed += plan.placement.recompute[u] ? 1 : 0;
  text += fmt::format("  {} of {} blocks are recomputed in backward\n", recomputed, model.units.size() - 2);
  return text;
}

std::string traffic_text(const Plan& plan) {
  const auto& program = plan.program(ProgramKind::train);
  const auto bytes = lane_bytes(program);
  double flops = 0;
  for (const Op& op : program.ops) flops += op.flops;
  std::string text = fmt::format("a step: {} operations, {:.3g} FLOP\n", program.ops.size(), flops);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (bytes[lane] > 0)
      text += fmt::format("  {:<20} {:>12}\n", name_of(static_cast<Lane>(lane)), format_bytes(bytes[lane]));
  }
  return text;
}

}  // namespace

PlanReport plan_report(const Config& config) {
  const ModelShape model =
      describe(model_spec(config), config.train.micro_batch, compute_dtype(config), grad_dtype(config));
  const PlanRequest request =
      plan_request(config, model, config.placement.chunk_numel, std::uint64_t{1} << 50);
  const Plan plan = make_plan(request);
  std::uint64_t parameters = 0;
  for (const UnitShape& unit : model.units) parameters += unit.numel();
  PlanReport report;
  report.fits = plan.fits;
  report.text = fmt::format("{} parameters in {} units, {} chunks\n", parameters, model.units.size(),
                            plan.chunks.size());
  if (!plan.fits) {
    report.text += refusal(plan) + "\n";
    return report;
  }
  require_legal(model, plan, request.contributions);
  report.text += to_text(plan.ledger) + placement_text(plan, request) + traffic_text(plan);
  return report;
}

}  // namespace terrace
