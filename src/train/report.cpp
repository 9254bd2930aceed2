#include "src/train/report.h"

#include <spdlog/fmt/fmt.h>
#include <sys/resource.h>

#include "src/base/units.h"

namespace terrace {

void LaneTotals::add(const StepOutcome& outcome) {
  ++steps_;
  wall_us_ += outcome.wall_us;
  for (int lane = 0; lane < kLanes; ++lane) {
    lanes_[lane].operations += outcome.lanes[lane].operations;
    lanes_[lane].bytes += outcome.lanes[lane].bytes;
    lanes_[lane].flops += outcome.lanes[lane].flops;
    lanes_[lane].busy_us += outcome.lanes[lane].busy_us;
  }
}

std::string LaneTotals::text(const Plan& plan) const {
  std::string text = fmt::format("{} steps, {:.1f} s\n{:<10} {:>10} {:>12} {:>9} {:>7}   {}\n", steps_,
                                 wall_us_ / 1e6, "lane", "operations", "moved", "busy", "share", "rate");
  for (int lane = 0; lane < kLanes; ++lane) {
    const LaneStats& stats = lanes_[lane];
    if (stats.operations == 0) continue;
    const double busy = stats.busy_us > 0 ? stats.busy_us : 1;
    const std::string rate = stats.flops > 0
                                 ? fmt::format("{:.0f} GFLOP/s", stats.flops / busy / 1e3)
                                 : fmt::format("{:.2f} GB/s", static_cast<double>(stats.bytes) / busy / 1e3);
    text += fmt::format("{:<10} {:>10} {:>12} {:>7.2f} s {:>6.1f}%   {}\n", name_of(static_cast<Lane>(lane)),
                        stats.operations, format_bytes(stats.bytes), stats.busy_us / 1e6,
                        100 * stats.busy_us / (wall_us_ > 0 ? wall_us_ : 1), rate);
  }
  text +=
      fmt::format("held: device {}, host {}, nvme {}\n", format_bytes(plan.ledger.total(Tier::device)),
                  format_bytes(plan.ledger.total(Tier::host)), format_bytes(plan.ledger.total(Tier::nvme)));
  return text;
}

StepMetrics to_metrics(const StepReport& report, const StepOutcome& outcome) {
  StepMetrics metrics;
  metrics.step = report.step;
  metrics.loss = report.loss;
  metrics.grad_norm = report.grad_norm;
  metrics.lr = report.lr;
  metrics.tokens_per_s = report.tokens_per_s;
  metrics.dropped = report.dropped;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (outcome.lanes[lane].operations == 0) continue;
    metrics.lanes[std::string(name_of(static_cast<Lane>(lane)))] = outcome.lanes[lane].busy_us / 1e6;
  }
  return metrics;
}

std::map<std::string, std::uint64_t> peak_bytes(const Plan& plan, std::uint64_t locked_bytes) {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return {{"device_bytes", plan.arena_bytes[0]},
          {"host_bytes", plan.arena_bytes[1]},
          {"nvme_bytes", plan.ledger.total(Tier::nvme)},
          {"locked_bytes", locked_bytes},
          {"resident_bytes", static_cast<std::uint64_t>(usage.ru_maxrss) * 1024}};
}

}  // namespace terrace
