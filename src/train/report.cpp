#include "src/train/report.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "io/disk_rates.h"
#include "src/base/fail.h"
#include "src/base/parallel_for.h"
#include "src/base/units.h"
#include "src/plan/overlap.h"
#include "src/train/machine_rates.h"

namespace terrace {
namespace {

constexpr auto kNvme = static_cast<std::size_t>(Lane::nvme);

bool is_step(ProgramKind kind) {
  return kind == ProgramKind::train || kind == ProgramKind::train_commit;
}

// With the step before pending, or with nothing that a step leaves to the next.
bool ran_whole(const StepProgram& program, const std::vector<OpTime>& ops) {
  bool leaves = false;
  for (OpId id = 0; id < program.ops.size(); ++id) {
    if (!program.ops[id].predicated) continue;
    if (ops[id].end_us > 0) return true;
    leaves = true;
  }
  return !leaves;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

const std::vector<Lane>& lanes_on_cores() {  // of the host device
  static const std::vector<Lane> lanes{Lane::compute, Lane::optimizer, Lane::h2d, Lane::d2h};
  return lanes;
}

std::string seconds(double us) {
  return us < 1e6 ? fmt::format("{:.1f} ms", us / 1e3) : fmt::format("{:.3f} s", us / 1e6);
}

double gbps_of(const LaneStats& stats) {
  return stats.busy_us > 0 ? static_cast<double>(stats.bytes) / stats.busy_us / 1e3 : 0;
}

}  // namespace

ProbeRoom probe_room(const Config& config, const Plan& plan) {
  const auto nvme = static_cast<std::size_t>(Tier::nvme);
  const std::uint64_t budget = plan.ledger.budget_bytes[nvme];
  const std::uint64_t held = plan.ledger.total(Tier::nvme);
  return {nvme_folders(config), budget > held ? budget - held : 0, {}};
}

RunTotals::RunTotals(const ModelShape& model, const Plan& plan, PeakMemory& memory,
                     std::optional<std::uint64_t> ledger_bytes)
    : model_(model),
      plan_(plan),
      memory_(memory),
      ledger_bytes_(ledger_bytes.value_or(plan.ledger.total(Tier::device) + plan.ledger.total(Tier::host))),
      shortest_(plan) {}

void RunTotals::add(const StepOutcome& outcome) {
  ++(is_step(outcome.kind) ? steps_ : others_);
  wall_us_ += outcome.wall_us;
  for (int lane = 0; lane < kLanes; ++lane) {
    lanes_[lane].operations += outcome.lanes[lane].operations;
    lanes_[lane].bytes += outcome.lanes[lane].bytes;
    lanes_[lane].flops += outcome.lanes[lane].flops;
    lanes_[lane].busy_us += outcome.lanes[lane].busy_us;
  }
  memory_.sample();
  const StepProgram& program = plan_.program(outcome.kind);
  shortest_.add(outcome.kind, outcome.ops);
  for (OpId id = 0; id < program.ops.size(); ++id) {
    if (outcome.ops[id].end_us > 0 && writes_nvme(program.ops[id].kind))
      written_bytes_ += program.ops[id].bytes;
  }
  if (!is_step(outcome.kind) || !ran_whole(program, outcome.ops)) return;
  Steps& steps = by_kind_[static_cast<std::size_t>(outcome.kind)];
  if (steps.wall_us.empty() || outcome.wall_us < steps.fastest_us) {
    steps.fastest_us = outcome.wall_us;
    steps.fastest = outcome.ops;
  }
  if (steps.wall_us.size() < Steps::kKept) {
    steps.wall_us.push_back(outcome.wall_us);
  } else {
    steps.wall_us[steps.count % Steps::kKept] = outcome.wall_us;
  }
  ++steps.count;
}

std::uint64_t RunTotals::disk_bytes() const {
  return lanes_[kNvme].bytes;
}

void RunTotals::look_at_disk(const ProbeRoom& room) {
  if (disk_bytes() == 0) return;
  const double seen = gbps_of(lanes_[kNvme]);
  const auto take_seen = [&](const std::string& why) {
    disk_ = {seen, seen, 0, 0};
    disk_text_ = fmt::format(
        "not measured, {}: taken as the {:.2f} GB/s at which the run's own transfers went", why, seen);
  };
  if (disk_bytes() < kLeastTrafficToProbe) {
    return take_seen(fmt::format("the run moved {} in all", format_bytes(disk_bytes())));
  }
  const std::uint64_t each = room.folders.empty() ? 0 : room.bytes / room.folders.size();
  if (each < kLeastDiskProbeBytes) return take_seen("the budget leaves no room for it");
  try {
    const DiskRates rates = measure_disk(room.folders, {.bytes = std::min(each, kDiskProbeBytes)});
    disk_ = disk_lane(rates.read_gbps, rates.write_gbps, rates.both_gbps);
    disk_text_ = fmt::format(
        "{:.2f} GB/s read, {:.2f} written, {:.2f} + {:.2f} both at once, after the run ({})", rates.read_gbps,
        rates.write_gbps, rates.both_gbps / 2, rates.both_gbps / 2, rates.method);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::internal) throw;
    take_seen(error.what());
  }
}

void RunTotals::finish(const ProbeRoom& room) {
  look_at_disk(room);
  const auto most = std::max_element(by_kind_.begin(), by_kind_.end(),
                                     [](const Steps& a, const Steps& b) { return a.count < b.count; });
  if (most->count == 0) return;
  Result result;
  result.kind = static_cast<ProgramKind>(most - by_kind_.begin());
  result.steps = most->count;
  result.median_us = median(most->wall_us);

  const StepProgram& program = plan_.program(result.kind);
  MachineProfile machine;
  machine.at(Lane::nvme) = disk_;
  if (disk_bytes() > 0) {
    const AlignedMemory little(room.idle.size() < kMiB ? kMiB : 0, "bytes to check");
    machine.checksum_gbps = measure_checksum_gbps(room.idle.size() < kMiB ? little.span() : room.idle);
  }
  machine.share(lanes_on_cores());
  std::vector<double> op_us = shortest_.op_times_us(result.kind);
  for (OpId id = 0; id < op_us.size(); ++id) {  // a copy takes one core of them
    const Lane lane = program.ops[id].lane;
    if (lane == Lane::h2d || lane == Lane::d2h) op_us[id] /= parallel_threads();
  }
  result.bound = step_bound(model_, plan_, result.kind, op_us, machine,
                            busy_us(most->fastest, program, lanes_on_cores()));
  const Timeline timeline = simulate_times(program, op_us, machine);
  result.predicted_us = std::max(timeline.step_us, timeline.busiest_resource_us);
  result_ = std::move(result);
}

std::optional<double> RunTotals::step_over_bound() const {
  if (!result_ || !(result_->bound.bound_us > 0)) return std::nullopt;
  return result_->median_us / result_->bound.bound_us;
}

std::string RunTotals::result_text() const {
  if (!result_) {
    return "a step's bound is not known: no step found the updates of the step before pending (the first "
           "does\n"
           "  not, nor one after an evaluation or a dropped step)\n";
  }
  const StepBound& bound = result_->bound;
  std::string text = fmt::format("a step{}: measured {} (median of {}), predicted {}, bound {}\n",
                                 result_->kind == ProgramKind::train_commit ? ", with its commit" : "",
                                 seconds(result_->median_us), result_->steps, seconds(result_->predicted_us),
                                 seconds(bound.bound_us));
  if (const auto ratio = step_over_bound()) {
    text += fmt::format("  {:.2f} times its bound, which is {}\n", *ratio, bound.limited_by);
  }
  if (!disk_text_.empty()) text += fmt::format("  the disk: {}\n", disk_text_);
  return text;
}

std::string RunTotals::text(std::uint64_t locked_bytes) const {
  std::string text = fmt::format("{} steps{}, {:.1f} s\n{:<10} {:>10} {:>12} {:>9} {:>7}   {}\n", steps_,
                                 others_ > 0 ? fmt::format(" and {} programs between them", others_) : "",
                                 wall_us_ / 1e6, "lane", "operations", "moved", "busy", "share", "rate");
  for (int lane = 0; lane < kLanes; ++lane) {
    const LaneStats& stats = lanes_[lane];
    if (stats.operations == 0) continue;
    std::string rate;
    if (stats.flops > 0) {
      rate = fmt::format("{:.0f} GFLOP/s", stats.flops / std::max(stats.busy_us, 1.0) / 1e3);
    } else if (stats.bytes > 0) {
      rate = fmt::format("{:.2f} GB/s", gbps_of(stats));
    }
    text += fmt::format("{:<10} {:>10} {:>12} {:>7.2f} s {:>6.1f}%   {}\n", name_of(static_cast<Lane>(lane)),
                        stats.operations, format_bytes(stats.bytes), stats.busy_us / 1e6,
                        100 * stats.busy_us / (wall_us_ > 0 ? wall_us_ : 1), rate);
  }
  text += result_text();
  text += "held:";
  for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
    constexpr std::uint64_t kOpenEnded = std::uint64_t{1} << 48;
    const std::uint64_t budget = plan_.ledger.budget_bytes[static_cast<std::size_t>(tier)];
    if (budget == 0) continue;
    text += fmt::format("{} {} {}", tier == Tier::device ? "" : ",", name_of(tier),
                        format_bytes(plan_.ledger.total(tier)));
    if (budget < kOpenEnded) text += " of " + format_bytes(budget);
  }
  const auto peak = peak_bytes(locked_bytes);
  text += fmt::format("\nmemory: {} anonymous at most, {} by the ledger; {} page-locked\n",
                      format_bytes(peak.at("resident_bytes")), format_bytes(peak.at("ledger_bytes")),
                      format_bytes(locked_bytes));
  if (disk_bytes() > 0) text += fmt::format("written to the disk: {}\n", format_bytes(written_bytes_));
  return text;
}

std::map<std::string, std::uint64_t> RunTotals::peak_bytes(std::uint64_t locked_bytes) const {
  return {{"device_bytes", plan_.ledger.total(Tier::device)},
          {"host_bytes", plan_.ledger.total(Tier::host)},
          {"nvme_bytes", plan_.ledger.total(Tier::nvme)},
          {"ledger_bytes", ledger_bytes_},
          {"locked_bytes", locked_bytes},
          {"resident_bytes", memory_.peak().resident_bytes()}};
}

StepMetrics to_metrics(const StepReport& report, const StepOutcome& outcome) {
  StepMetrics metrics;
  metrics.step = report.step;
  metrics.loss = report.loss;
  metrics.grad_norm = report.grad_norm;
  metrics.lr = report.lr;
  metrics.tokens_per_s = report.tokens_per_s;
  metrics.dropped = report.dropped;
  metrics.rank_loss = report.rank_losses;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (outcome.lanes[lane].operations == 0) continue;
    metrics.lanes[std::string(name_of(static_cast<Lane>(lane)))] = outcome.lanes[lane].busy_us / 1e6;
  }
  return metrics;
}

}  // namespace terrace
