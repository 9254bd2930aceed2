// Runs a small step program in every order that its lanes and waits allow, on a memory of symbols.
#pragma once

#include <cstdint>

#include "src/plan/program.h"

namespace terrace {

// An operation is two events, its start and its end: between them it is under way, beside those of other
// lanes (and of the nvme lane itself). Every byte it accesses is looked at twice, when it starts and just
// before it ends. When it starts, the bytes that it writes become unlike anything else (half written); when
// it ends they get a value made from the operation and all that it saw at its start. A write looks at what it
// replaces, so that two writes that nobody reads between them still show their order.
struct Exploration {
  bool one_outcome = true;  // every order gives every look, and the memory at the end, the same values
  bool deadlock = false;    // some order leaves operations that can never start
  std::uint64_t states = 0;
};

// Visits every set of events that can have happened; two ways to the same set must agree on all that was seen
// and on the memory. At most 14 operations; waits may point anywhere. Cost: up to 3^operations states.
Exploration explore(const StepProgram& program);

// The same question, asked of every order one by one. For a handful of operations: the oracle of explore().
Exploration explore_every_order(const StepProgram& program);

// Does `a` end before `b` starts in every order? By enumeration; the oracle of HappensBefore.
bool always_before(const StepProgram& program, OpId a, OpId b);

}  // namespace terrace
