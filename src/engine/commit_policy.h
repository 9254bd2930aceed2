// When to commit.
#pragma once

#include <cstdint>

#include "src/plan/plan.h"
#include "terrace/config.h"

namespace terrace {

// commit.every_steps: a number, 0 for never, or automatic: every step where all states are on disk anyway,
// else so that writing the states that live in memory costs at most 5% of the disk's time (at an assumed 1.5
// GB/s).
class CommitPolicy {
 public:
  CommitPolicy(const Config& config, const Plan& plan);

  bool enabled() const { return enabled_; }
  bool due(std::uint64_t step) const { return enabled_ && step > 0 && step % every_ == 0; }
  // Wall time of a step that ran; the automatic interval follows the first three.
  void measure(double step_us);

 private:
  bool enabled_ = false;
  bool automatic_ = false;
  std::uint64_t every_ = 1;
  double in_memory_bytes_ = 0;
  int measured_ = 0;
};

}  // namespace terrace
