// Where the time went, what bounded a step, and what was held.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/base/process_memory.h"
#include "src/plan/op_times.h"
#include "src/plan/plan.h"
#include "src/plan/step_costs.h"
#include "src/runtime/runtime.h"
#include "src/train/metrics.h"
#include "terrace/config.h"
#include "terrace/train.h"

namespace terrace {

// A run that moves less than this to and from the disk is not worth a disk probe (io/disk_rates.h).
inline constexpr std::uint64_t kLeastTrafficToProbe = std::uint64_t{4} << 30;

// The folders to measure the disk in, and what the run's budget leaves of them.
struct ProbeRoom {
  std::vector<std::string> folders;
  std::uint64_t bytes = 0;
  std::span<const std::byte> idle = {};  // memory that nobody writes now: checksums are timed over it
};
ProbeRoom probe_room(const Config& config, const Plan& plan);

// Sums over the programs of a run. Model, plan and memory must outlive it. Thread contract: one thread.
class RunTotals {
 public:
  // `ledger_bytes`: of the process, where it holds the devices of several ranks; nothing: the plan's.
  RunTotals(const ModelShape& model, const Plan& plan, PeakMemory& memory,
            std::optional<std::uint64_t> ledger_bytes = {});

  // Steps, and the drains and commits between them (a drain's updates run beside nothing, so its times are
  // good ones); evaluations are left out. Also looks at what the process holds. Cost: microseconds, and a
  // pass over the operations.
  void add(const StepOutcome& outcome);

  // Once, after the last step: what the disk gives now, from which the bound follows. Measured where the run
  // moved 4 GiB or more and there is room; else what the run's own transfers reached is taken.
  void finish(const ProbeRoom& room);

  // A table for people: operations, bytes, busy time, rate and share of each lane; then a step as predicted,
  // measured and bounded, side by side. After finish().
  std::string text(std::uint64_t locked_bytes) const;

  // The median of the last 1,000 steps over their bound; nothing where no step ran like most do, with the
  // step before pending.
  std::optional<double> step_over_bound() const;

  // resident_bytes: the most anonymous (hence also page-locked) memory that the process was seen to hold
  // after a program; ledger_bytes: what the ledger says of device and host, which here are both memory;
  // locked_bytes; device_bytes, host_bytes, nvme_bytes: of each tier.
  std::map<std::string, std::uint64_t> peak_bytes(std::uint64_t locked_bytes) const;

 private:
  // Steps of one kind that ran with the step before pending, or had nothing to leave.
  struct Steps {
    static constexpr std::size_t kKept = 1000;
    std::size_t count = 0;
    std::vector<double> wall_us;  // of the last kKept
    double fastest_us = 0;
    std::vector<OpTime> fastest;
  };
  struct Result {
    ProgramKind kind = ProgramKind::train;
    std::size_t steps = 0;
    double median_us = 0;
    double predicted_us = 0;
    StepBound bound;
  };

  std::uint64_t disk_bytes() const;
  void look_at_disk(const ProbeRoom& room);
  std::string result_text() const;

  const ModelShape& model_;
  const Plan& plan_;
  std::uint64_t steps_ = 0;
  std::uint64_t others_ = 0;
  double wall_us_ = 0;
  std::array<LaneStats, kLanes> lanes_{};
  std::uint64_t written_bytes_ = 0;
  PeakMemory& memory_;
  std::uint64_t ledger_bytes_;
  ShortestTimes shortest_;
  std::array<Steps, kProgramKinds> by_kind_;
  LaneProfile disk_;
  std::string disk_text_;
  std::optional<Result> result_;
};

// Without an outcome: before the step has ended.
StepMetrics to_metrics(const StepReport& report, const StepOutcome& outcome = {});

}  // namespace terrace
