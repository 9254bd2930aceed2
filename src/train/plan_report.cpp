#include "terrace/plan.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>

#include "src/base/units.h"
#include "src/engine/commit_policy.h"
#include "src/plan/check_plan.h"
#include "src/plan/op_times.h"
#include "src/plan/step_costs.h"
#include "src/train/machine_rates.h"
#include "src/train/setup.h"
#include "src/train/stage_table.h"

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

// Units that stay whole on every rank where the others are sharded.
std::string kept_text(const Plan& plan, const PlanRequest& request) {
  if (request.ranks.stage != Stage::parameters) return "";
  std::uint64_t units = 0, numel = 0;
  std::string_view first;
  for (std::uint32_t u = 0; u < request.model.units.size(); ++u) {
    const UnitShape& unit = request.model.units[u];
    if (!plan.ranks.keeps_whole(u) || unit.numel() == 0) continue;
    if (units++ == 0) first = unit.name;
    numel += unit.padded_numel();
  }
  if (units == 0) return "";
  return fmt::format("  {} of {} units stay whole on every rank{}: {} each\n", units,
                     request.model.units.size(), units == 1 ? fmt::format(" ({})", first) : "",
                     format_bytes(numel * dtype_bytes(request.model.param_dtype)));
}

std::string placement_text(const Plan& plan, const PlanRequest& request) {
  const ModelShape& model = request.model;
  const auto param_bytes = [&](std::size_t c) {
    return plan.chunks[c].numel * dtype_bytes(model.param_dtype);
  };
  const GradientSums sums(request.ranks, request.contributions);
  const auto sum_bytes = [&](std::size_t c) {
    return plan.chunks[c].master_only ? 0 : plan.chunks[c].numel * dtype_bytes(sums.sum_dtype(model));
  };
  std::string text = "where each class of data goes\n";
  text += fmt::format("  {:<20} {}\n", "parameters", where(plan.placement.parameters, param_bytes));
  text += fmt::format("  {:<20} {}\n", "gradients", where(plan.placement.gradients, sum_bytes));
  text += fmt::format(
      "  {:<20} {}\n", "optimizer state",
      where(plan.placement.optimizer_state, [&](std::size_t c) { return stream_bytes(plan.chunks[c]); }));
  text += fmt::format("  {:<20} {}\n", "activations", where(plan.placement.activations, [&](std::size_t u) {
                        return model.units[u].output_bytes;
                      }));
  std::size_t recomputed = 0;
  for (std::size_t u = 1; u + 1 < model.units.size(); ++u) recomputed += plan.placement.recompute[u] ? 1 : 0;
  text += fmt::format("  {} of {} blocks are recomputed in backward\n", recomputed, model.units.size() - 2);
  return text + kept_text(plan, request);
}

std::string traffic_text(const StepProgram& program) {
  const auto bytes = lane_bytes(program);
  double flops = 0;
  for (const Op& op : program.ops) flops += op.flops;
  std::string text = fmt::format("a step{}: {} operations, {:.3g} FLOP\n",
                                 program.kind == ProgramKind::train_commit ? ", with its commit" : "",
                                 program.ops.size(), flops);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (bytes[lane] > 0)
      text += fmt::format("  {:<20} {:>12}\n", name_of(static_cast<Lane>(lane)), format_bytes(bytes[lane]));
  }
  return text;
}

// The largest slot that programs take from each pool: pools follow the residents in each arena.
std::array<std::uint64_t, kPools> largest_slots(const Plan& plan) {
  std::array<std::uint64_t, kPools> begin{}, largest{};
  std::array<std::uint64_t, kTiers> used = plan.residents.bytes;
  for (int pool = 0; pool < kPools; ++pool) {
    std::uint64_t& end = used[static_cast<std::size_t>(tier_of(static_cast<Pool>(pool)))];
    begin[pool] = end;
    end += plan.pools[pool];
  }
  for (const StepProgram& program : plan.programs) {
    for (const Slot& slot : program.slots) {
      if (slot.resident) continue;
      for (int pool = 0; pool < kPools; ++pool) {
        const bool inside = tier_of(static_cast<Pool>(pool)) == slot.tier &&
                            slot.offset_bytes >= begin[pool] &&
                            slot.offset_bytes < begin[pool] + plan.pools[pool];
        if (inside) largest[pool] = std::max(largest[pool], slot.bytes);
      }
    }
  }
  return largest;
}

std::string slots_text(const Plan& plan) {
  const auto largest = largest_slots(plan);
  std::string text = "slots\n";
  for (int pool = 0; pool < kPools; ++pool) {
    if (plan.pools[pool] == 0 || largest[pool] == 0) continue;
    text += fmt::format("  {:<28} {:>4} of {:>10}\n", name_of(static_cast<Pool>(pool)),
                        plan.pools[pool] / largest[pool], format_bytes(largest[pool]));
  }
  const auto count = [&](Pool pool) {
    const auto p = static_cast<std::size_t>(pool);
    return largest[p] > 0 ? plan.pools[p] / largest[p] : 0;
  };
  std::size_t chunks = 0;
  for (const Tier tier : plan.placement.optimizer_state) chunks += tier == Tier::nvme ? 1 : 0;
  std::string ahead;
  if (chunks > 0) {
    ahead = fmt::format("states of {} of the {} chunks on nvme",
                        std::min<std::uint64_t>(chunks, count(Pool::state_staging)), chunks);
  }
  if (const std::uint64_t pieces = count(Pool::piece); pieces > 1) {
    ahead += fmt::format("{}parameters of {} {}", ahead.empty() ? "" : ", ", pieces - 1,
                         pieces == 2 ? "piece" : "pieces");
  }
  if (!ahead.empty()) text += fmt::format("  read ahead: {}\n", ahead);
  return text;
}

bool moves_to_disk(const StepProgram& program) {
  const auto bytes = lane_bytes(program);
  return bytes[static_cast<std::size_t>(Lane::nvme)] + bytes[static_cast<std::size_t>(Lane::store)] > 0;
}

std::string time_text(double us) {
  return us < 1e6 ? fmt::format("{:.1f} ms", us / 1e3) : fmt::format("{:.2f} s", us / 1e6);
}

std::string prediction_text(const ModelShape& model, const Plan& plan, ProgramKind kind,
                            const MachineRates& rates) {
  std::string text = fmt::format(
      "the machine: products {:.0f} GFLOP/s, AdamW {:.2f} ns a parameter, copies {:.1f} GB/s, checksums "
      "{:.1f} "
      "GB/s,\n  {}\n",
      rates.product_gflops, rates.adamw_ns, rates.copy_gbps, rates.checksum_gbps, disk_text(rates));
  const StepProgram& program = plan.program(kind);
  if (moves_to_disk(program) && !(rates.disk_both_gbps > 0)) {
    return text + "a step's time is not predicted: the disk's rates are not known\n";
  }
  const MachineProfile machine = host_profile(rates);
  const Timeline timeline = simulate(program, machine);
  const StepBound bound = step_bound(model, plan, kind, op_times_us(program, machine), machine);
  // Checksums are in no lane: they may keep the cores busy for longer than the lanes.
  const double step_us = std::max(timeline.step_us, timeline.busiest_resource_us);
  text += fmt::format("predicted: {} a step; its bound is {}: {}\n", time_text(step_us),
                      time_text(bound.bound_us), bound.limited_by);
  return text;
}

}  // namespace

PlanReport plan_report(const Config& config, const std::function<MachineRates(bool disk)>& rates) {
  const ModelShape model = model_shape(config);
  const PlanRequest request =
      plan_request(config, model, config.placement.chunk_numel, std::uint64_t{1} << 50);
  const std::vector<Plan> plans = make_plans(request);
  const Plan& plan = plans[0];
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
  require_legal(model, plans, request.contributions);
  const CommitPolicy commits(config, plan);
  const bool every_step = commits.due(1) && plan.has(ProgramKind::train_commit);
  const ProgramKind kind = every_step ? ProgramKind::train_commit : ProgramKind::train;
  report.text += to_text(plan.ledger);
  if (plan.ledger.total(Tier::nvme) > 0) {
    report.text += fmt::format("space on nvme is checked and allocated first: {}, before the first step\n",
                               format_bytes(plan.ledger.total(Tier::nvme)));
  }
  if (plans.size() > 1) report.text += stage_table(request);
  report.text += placement_text(plan, request) + slots_text(plan) + traffic_text(plan.program(kind));
  if (rates) {
    report.text += prediction_text(model, plan, kind, rates(moves_to_disk(plan.program(kind))));
  }
  return report;
}

}  // namespace terrace
