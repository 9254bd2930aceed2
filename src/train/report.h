// Where the time went, and what was held.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "src/plan/plan.h"
#include "src/runtime/runtime.h"
#include "src/train/metrics.h"
#include "terrace/train.h"

namespace terrace {

// Sums over the steps of a run.
class LaneTotals {
 public:
  void add(const StepOutcome& outcome);
  // A table for people: operations, bytes, busy time, rate and share of the wall time of each lane.
  std::string text(const Plan& plan) const;

 private:
  std::uint64_t steps_ = 0;
  double wall_us_ = 0;
  std::array<LaneStats, kLanes> lanes_{};
};

// Without an outcome: before the step has ended.
StepMetrics to_metrics(const StepReport& report, const StepOutcome& outcome = {});

// Each tier's arena, what is page-locked, and the process's largest resident set.
std::map<std::string, std::uint64_t> peak_bytes(const Plan& plan, std::uint64_t locked_bytes);

}  // namespace terrace
