// Programs with one thing changed.
#pragma once

#include <vector>

#include "src/plan/program.h"

namespace terrace {

// The program without one operation; waits for it become waits for what it waited for.
inline StepProgram without(const StepProgram& program, OpId gone) {
  StepProgram left = program;
  const std::vector<OpId> inherited = program.ops[gone].waits;
  left.ops.erase(left.ops.begin() + gone);
  for (Op& op : left.ops) {
    std::vector<OpId> waits;
    for (const OpId wait : op.waits) {
      if (wait == gone) {
        waits.insert(waits.end(), inherited.begin(), inherited.end());
      } else {
        waits.push_back(wait > gone ? wait - 1 : wait);
      }
    }
    op.waits = waits;
  }
  return left;
}

}  // namespace terrace
