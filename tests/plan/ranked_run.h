// Plans of small runs of several ranks, with programs to be changed.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <vector>

#include "tests/plan/program_changes.h"
#include "tests/plan/ranked_plans.h"

namespace terrace::testing_models {

inline const RankShape kReplicated{Stage::replicated, 2, 1}, kOptimizer{Stage::optimizer, 2, 1},
    kGradients{Stage::gradients, 3, 1}, kParameters{Stage::parameters, 2, 1},
    kHybrid{Stage::parameters, 4, 2}, kLast{Stage::replicated, 2, 1, Reduction::last},
    kLastSharded{Stage::optimizer, 2, 1, Reduction::last},
    kGrouped{Stage::parameters, 2, 1, Reduction::grouped},
    kHierarchical{Stage::parameters, 4, 2, Reduction::hierarchical};
inline const std::vector<RankShape> kShapes{kReplicated, kOptimizer,   kGradients, kParameters,  kHybrid,
                                            kLast,       kLastSharded, kGrouped,   kHierarchical};
inline constexpr UpdateTime kUpdateTimes[] = {UpdateTime::next_forward, UpdateTime::backward};

struct RankedRun {
  PlanRequest request;
  std::vector<Plan> plans;

  // A program of a rank, to be changed.
  StepProgram program(std::uint32_t rank, ProgramKind kind = ProgramKind::train) const {
    return plans[rank].program(kind);
  }
  CheckInput input(std::uint32_t rank) const {
    return check_input(request.model, plans[rank], request.contributions);
  }
  std::set<Rule> rules(std::uint32_t rank, const StepProgram& program) const {
    std::set<Rule> found;
    for (const Violation& violation : check_program(program, input(rank))) found.insert(violation.rule);
    return found;
  }
  // Of the family in which one rank's program is another.
  std::set<Rule> family_rules(std::uint32_t rank, const StepProgram& program) const {
    auto programs = family(plans, program.kind);
    programs[rank] = &program;
    std::set<Rule> found;
    for (const Violation& violation : check_family(programs, mesh_of(plans[0]))) found.insert(violation.rule);
    return found;
  }
};

inline RankedRun run_of(const RankShape& shape, std::uint32_t contributions, UpdateTime updates,
                        const TierShares& parameters = kAllHost, const TierShares& others = kAllHost,
                        std::uint64_t persist_below_numel = 0) {
  RankedRun run;
  run.request = roomy_request(tiny_model(1, false), contributions, 4096);
  for (std::uint64_t& bytes : run.request.budget_bytes) bytes *= shape.ranks;
  run.request.ranks = shape;
  run.request.persist_below_numel = persist_below_numel;
  run.request.updates = updates;
  run.request.parameters = parameters;
  run.request.gradients = run.request.optimizer_state = others;
  run.request.slack = 0;
  run.plans = make_plans(run.request);
  require_legal(run.request.model, run.plans, contributions);
  return run;
}

inline OpId first(const StepProgram& program, const std::function<bool(const Op&)>& wanted) {
  for (OpId id = 0; id < program.ops.size(); ++id) {
    if (wanted(program.ops[id])) return id;
  }
  ADD_FAILURE() << "no such operation";
  return 0;
}
inline OpId first(const StepProgram& program, OpKind kind, RankGroup group = RankGroup::world) {
  return first(program, [&](const Op& op) { return op.kind == kind && op.group == group; });
}

inline testing::AssertionResult has(const std::set<Rule>& rules, Rule wanted) {
  if (rules.contains(wanted)) return testing::AssertionSuccess();
  auto result = testing::AssertionFailure() << "wanted " << name_of(wanted) << ", found";
  for (const Rule rule : rules) result << " " << name_of(rule);
  return result;
}

}  // namespace terrace::testing_models
