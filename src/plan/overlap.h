// How long lanes were at work, one of them or all at once, in a timeline that was simulated or run. Pure.
#pragma once

#include <vector>

#include "src/plan/program.h"
#include "src/plan/simulate.h"

namespace terrace {

// `ops`: by operation of the program, as Timeline::ops and StepOutcome::ops; what took no time counts for
// nothing. Throws internal where their numbers differ. Cost: O(n log n).

// Microseconds in which at least one of the lanes was at work.
double busy_us(const std::vector<OpTime>& ops, const StepProgram& program, const std::vector<Lane>& lanes);

// Microseconds in which every one of the lanes was.
double overlap_us(const std::vector<OpTime>& ops, const StepProgram& program, const std::vector<Lane>& lanes);

}  // namespace terrace
