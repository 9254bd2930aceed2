// What one rank holds and sends under each way of sharing out a run.
#pragma once

#include <string>

#include "src/plan/plan.h"

namespace terrace {

// One line a stage (and, where a number of replicas above 1 divides the ranks, hybrid sharding): bytes of
// parameters, summed gradients, optimizer state and accumulators that the rank with most keeps between steps,
// wherever they lie; bytes sent a step, by the program and by the closed form. A stage that does not fit the
// budgets says so, and a last line names those that do not have the request's order of reduction and are
// shown with `each`. Cost: planning, once a line.
std::string stage_table(const PlanRequest& request);

}  // namespace terrace
