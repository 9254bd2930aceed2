// Every program of a plan through the checker.
#pragma once

#include <vector>

#include "src/plan/check_program.h"
#include "src/plan/plan.h"

namespace terrace {

CheckInput check_input(const ModelShape& model, const Plan& plan, std::uint32_t contributions);

// Throws internal with the first violation of the first program that is not legal, or of the first pair of
// which one may not follow the other.
void require_legal(const ModelShape& model, const Plan& plan, std::uint32_t contributions);

// The same of every rank's plan, and that the programs of each kind meet (check_family.h). `plans` [rank].
void require_legal(const ModelShape& model, const std::vector<Plan>& plans, std::uint32_t contributions);

}  // namespace terrace
