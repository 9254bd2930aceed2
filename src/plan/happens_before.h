// What the lanes and waits of a step program promise about the order of its operations.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "src/plan/program.h"

namespace terrace {

// Every lane starts its operations in list order; all lanes but nvme and store also complete one before
// starting the next. So the starts of a lane form a chain, and a vector clock over the lanes' starts is
// exact, for these too: a has completed when b starts if some operation that directly follows a's completion
// (a waiter, or the next one on a lane that completes in order) has started by then.
class HappensBefore {
 public:
  // Every wait must name an earlier operation. O(operations + waits).
  explicit HappensBefore(const StepProgram& program);

  // In every run `a` has completed when `b` starts. O(1).
  bool before(OpId a, OpId b) const;

  // The operation before `op` on its lane, or kNone.
  OpId previous_on_lane(OpId op) const { return previous_[op]; }

 private:
  using Clock = std::array<std::uint32_t, kLanes>;
  std::vector<Clock> started_;  // [op][lane]: operations of the lane that have started when op has
  std::vector<Clock>
      released_;  // [op][lane]: first count at which one that directly follows op's completion has started
  std::vector<OpId> previous_;
};

}  // namespace terrace
