#include "src/engine/commit_policy.h"

#include <algorithm>
#include <cmath>

namespace terrace {
namespace {

constexpr double kDiskShare = 0.05;
constexpr double kDiskBytesPerUs = 1500;
constexpr std::uint64_t kUntilMeasured = 1000;

}  // namespace

CommitPolicy::CommitPolicy(const Config& config, const Plan& plan)
    : enabled_(plan.has(ProgramKind::commit)), automatic_(config.commit.every_steps < 0) {
  for (std::size_t c = 0; c < plan.chunks.size(); ++c) {
    if (plan.placement.optimizer_state[c] != Tier::nvme && !plan.chunks[c].master_only) {
      in_memory_bytes_ += static_cast<double>(state_slot_bytes(plan.chunks[c]));
    }
  }
  if (!automatic_) {
    every_ = static_cast<std::uint64_t>(std::max<std::int64_t>(1, config.commit.every_steps));
  } else if (in_memory_bytes_ > 0) {
    every_ = kUntilMeasured;
  }
}

void CommitPolicy::measure(double step_us) {
  if (!automatic_ || in_memory_bytes_ == 0 || ++measured_ > 3) return;
  const double write_us = in_memory_bytes_ / kDiskBytesPerUs;
  every_ = static_cast<std::uint64_t>(std::clamp(std::ceil(write_us / (kDiskShare * step_us)), 1.0, 1000.0));
}

}  // namespace terrace
