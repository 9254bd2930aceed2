#include "src/plan/happens_before.h"

#include <algorithm>

namespace terrace {

HappensBefore::HappensBefore(const StepProgram& program) {
  const std::size_t count = program.ops.size();
  Clock never;
  never.fill(kNone);
  started_.assign(count, Clock{});
  released_.assign(count, never);
  previous_.assign(count, kNone);

  Clock listed{};
  std::array<OpId, kLanes> last;
  last.fill(kNone);
  for (OpId id = 0; id < count; ++id) {
    const Op& op = program.ops[id];
    const auto lane = static_cast<std::size_t>(op.lane);
    const std::uint32_t position = ++listed[lane];
    Clock& clock = started_[id];
    const auto follows = [&](OpId earlier, bool completed) {
      for (std::size_t i = 0; i < kLanes; ++i) clock[i] = std::max(clock[i], started_[earlier][i]);
      if (completed) released_[earlier][lane] = std::min(released_[earlier][lane], position);
    };
    previous_[id] = last[lane];
    if (last[lane] != kNone) follows(last[lane], completes_in_order(op.lane));
    for (const OpId wait : op.waits) follows(wait, true);
    clock[lane] = position;
    last[lane] = id;
  }
}

bool HappensBefore::before(OpId a, OpId b) const {
  for (std::size_t i = 0; i < kLanes; ++i) {
    if (released_[a][i] <= started_[b][i]) return true;
  }
  return false;
}

}  // namespace terrace
