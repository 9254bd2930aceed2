// What ranks must not do together.
#include <gtest/gtest.h>

#include <string>

#include "src/base/fail.h"
#include "tests/plan/ranked_run.h"

namespace terrace {
namespace {

using namespace testing_models;

// The collectives of a program, and its commit.
std::vector<OpId> together(const StepProgram& program) {
  std::vector<OpId> found;
  for (OpId id = 0; id < program.ops.size(); ++id) {
    if (program.ops[id].lane == Lane::collective || program.ops[id].kind == OpKind::commit)
      found.push_back(id);
  }
  return found;
}

TEST(CheckFamily, RefusesCollectivesInAnotherOrder) {
  for (const RankShape& shape : kShapes) {
    const RankedRun run = run_of(shape, 3, UpdateTime::next_forward);
    for (const ProgramKind kind : {ProgramKind::train, ProgramKind::train_commit}) {
      const StepProgram program = run.program(1, kind);
      const std::vector<OpId> order = together(program);
      ASSERT_GT(order.size(), 4u);
      EXPECT_TRUE(run.family_rules(1, program).empty());
      for (std::size_t i = 0; i + 1 < order.size(); ++i) {
        const Op &a = program.ops[order[i]], &b = program.ops[order[i + 1]];
        StepProgram changed = program;
        std::swap(changed.ops[order[i]], changed.ops[order[i + 1]]);
        // A shard group and a replicate group have one rank in common: a swap on one rank makes nobody wait
        // for ever.
        const bool apart = a.group != RankGroup::world && b.group != RankGroup::world && a.group != b.group;
        EXPECT_EQ(run.family_rules(1, changed).contains(Rule::collective), !apart)
            << words(shape) << ": " << describe_op(changed, order[i]) << " before "
            << describe_op(changed, order[i + 1]);
      }
    }
    // Programs of two kinds; too few of them.
    auto programs = family(run.plans, ProgramKind::train);
    programs[1] = &run.plans[1].program(ProgramKind::train_commit);
    EXPECT_FALSE(check_family(programs, mesh_of(run.plans[0])).empty());
    programs = family(run.plans, ProgramKind::train);
    programs.pop_back();
    EXPECT_FALSE(check_family(programs, mesh_of(run.plans[0])).empty());
  }
}

// Rank 0 waits in its replicate group for rank 2, that in its shard group for rank 3, that for rank 1, that
// for rank 0.
TEST(CheckFamily, RefusesAWaitInACircleOfGroups) {
  const RankedRun run = run_of(kHybrid, 3, UpdateTime::next_forward);
  std::vector<StepProgram> programs;
  for (std::uint32_t rank = 0; rank < 4; ++rank) programs.push_back(run.program(rank));
  for (const std::uint32_t rank : {1u, 2u}) {
    const std::vector<OpId> order = together(programs[rank]);
    for (std::size_t i = 0; i + 1 < order.size(); ++i) {
      Op &a = programs[rank].ops[order[i]], &b = programs[rank].ops[order[i + 1]];
      if (a.kind != OpKind::all_gather || b.kind != OpKind::all_gather || a.group == b.group) continue;
      std::swap(a, b);
      break;
    }
  }
  std::vector<const StepProgram*> family;
  for (const StepProgram& program : programs) family.push_back(&program);
  const auto violations = check_family(family, mesh_of(run.plans[0]));
  ASSERT_FALSE(violations.empty());
  EXPECT_EQ(violations[0].rule, Rule::collective);
  EXPECT_NE(violations[0].text.find("waits for ever"), std::string::npos) << violations[0].text;
}

// A rank without a contribution gathers for the others alone: by itself its program is legal without.
TEST(CheckFamily, RefusesARankThatStaysAway) {
  const RankedRun run = run_of(kParameters, 1, UpdateTime::next_forward);
  const StepProgram program = run.program(1);
  const StepProgram left = without(program, first(program, OpKind::all_gather, RankGroup::shard));
  EXPECT_TRUE(run.rules(1, left).empty());
  EXPECT_TRUE(has(run.family_rules(1, left), Rule::collective));
  std::vector<Plan> plans = run.plans;
  EXPECT_NO_THROW(require_legal(run.request.model, plans, 1));
  plans[1].programs[static_cast<std::size_t>(ProgramKind::train)] = left;
  EXPECT_THROW(require_legal(run.request.model, plans, 1), Error);
  plans = run.plans;
  std::swap(plans[0], plans[1]);
  EXPECT_THROW(require_legal(run.request.model, plans, 1), Error);
}

}  // namespace
}  // namespace terrace
