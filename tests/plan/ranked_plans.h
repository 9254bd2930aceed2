// Plans for several ranks, and what the checker says of them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "src/plan/check_family.h"
#include "src/plan/check_plan.h"
#include "tests/plan/tiny_models.h"

namespace terrace::testing_models {

inline std::string words(const RankShape& shape) {
  return "stage " + std::to_string(static_cast<int>(shape.stage)) + ", " + std::to_string(shape.ranks) +
         " ranks, " + std::to_string(shape.replicas) + " replicas, reduce " +
         std::string(name_of(shape.reduction));
}

// Every stage at 1 to 4 ranks, hybrids, and the orders in which contributions may be added up.
inline std::vector<RankShape> mesh_shapes() {
  std::vector<RankShape> shapes;
  for (std::uint32_t n = 1; n <= 4; ++n) {
    for (const Stage stage : {Stage::replicated, Stage::optimizer, Stage::gradients, Stage::parameters})
      shapes.push_back({stage, n, 1});
  }
  for (const auto& [shards, replicas] :
       {std::pair{2u, 2u}, std::pair{2u, 1u}, std::pair{1u, 2u}, std::pair{3u, 2u}})
    shapes.push_back({Stage::parameters, shards * replicas, replicas});
  shapes.insert(shapes.end(), {{Stage::replicated, 2, 1, Reduction::last},
                               {Stage::optimizer, 3, 1, Reduction::last},
                               {Stage::replicated, 3, 1, Reduction::grouped},
                               {Stage::gradients, 2, 1, Reduction::grouped},
                               {Stage::parameters, 3, 1, Reduction::grouped},
                               {Stage::parameters, 4, 2, Reduction::grouped},
                               {Stage::parameters, 4, 2, Reduction::hierarchical},
                               {Stage::parameters, 6, 2, Reduction::hierarchical}});
  return shapes;
}

// Units that every mesh above divides, all of whose parameters forward and backward both read: three of 12
// blocks, one of 24.
inline ModelShape even_model() {
  ModelShape model;
  for (int u = 0; u < 4; ++u) {
    UnitShape unit;
    unit.name = "u" + std::to_string(u);
    unit.tensors = {{unit.name + ".w", 12 * kBlockNumel * (u == 3 ? 2 : 1), 0}};
    unit.output_bytes = u < 3 ? 2048 : 0;
    unit.forward_flops = unit.backward_flops = 1e6;
    model.units.push_back(unit);
  }
  return model;
}
inline constexpr std::uint64_t kEvenNumel = 12 * kBlockNumel * 5, kEvenLastNumel = 12 * kBlockNumel * 2;

// The programs of a kind of all ranks.
inline std::vector<const StepProgram*> family(const std::vector<Plan>& plans, ProgramKind kind) {
  std::vector<const StepProgram*> programs;
  for (const Plan& plan : plans) programs.push_back(&plan.programs[static_cast<std::size_t>(kind)]);
  return programs;
}

inline CheckRanks mesh_of(const Plan& plan) {
  return {plan.ranks.ranks(),
          0,
          plan.ranks.shape().shard_size(),
          plan.ranks.shape().replicate_size(),
          plan.ranks.shape().keeps_all_parameters(),
          plan.ranks.shape().reduction};
}

// What ranks do together, a line each. For messages.
inline std::string collectives(const StepProgram& program) {
  std::string text;
  for (OpId id = 0; id < program.ops.size(); ++id) {
    const Op& op = program.ops[id];
    if (op.kind == OpKind::commit || op.lane == Lane::collective) text += describe_op(program, id) + "\n";
  }
  return text;
}

// Legal programs that meet, without a wait too many, and inside their arenas.
inline void expect_legal(const PlanRequest& request, const std::vector<Plan>& plans) {
  EXPECT_NO_THROW(require_legal(request.model, plans, request.contributions));
  for (int k = 0; k < kProgramKinds; ++k) {
    if (!plans[0].has(static_cast<ProgramKind>(k))) continue;
    const auto violations = check_family(family(plans, static_cast<ProgramKind>(k)), mesh_of(plans[0]));
    if (violations.empty()) continue;
    for (const Plan& plan : plans)
      ADD_FAILURE() << "rank " << plan.rank << ":\n"
                    << collectives(plan.programs[static_cast<std::size_t>(k)]);
  }
  for (const Plan& plan : plans) {
    const CheckInput input = check_input(request.model, plan, request.contributions);
    for (const StepProgram& program : plan.programs) {
      if (program.ops.empty()) continue;
      const auto violations = check_program(program, input);
      for (std::size_t i = 0; i < std::min<std::size_t>(3, violations.size()); ++i) {
        ADD_FAILURE() << "rank " << plan.rank << ", " << name_of(program.kind) << ": "
                      << name_of(violations[i].rule) << ": " << violations[i].text;
      }
      EXPECT_TRUE(redundant_waits(program).empty()) << name_of(program.kind);
      for (const Tier tier : {Tier::device, Tier::host}) {
        EXPECT_LE(peak_live_bytes(program, tier), plan.arena_bytes[static_cast<std::size_t>(tier)]);
      }
    }
  }
}

// Every program of every rank, without any one of its waits, is illegal.
inline void expect_dropped_waits_refused(const PlanRequest& request, const std::vector<Plan>& plans) {
  std::size_t dropped = 0;
  for (const Plan& plan : plans) {
    const CheckInput input = check_input(request.model, plan, request.contributions);
    for (const StepProgram& program : plan.programs) {
      for_each_dropped_wait(program, [&](const StepProgram& broken, WaitOf wait) {
        ++dropped;
        EXPECT_FALSE(check_program(broken, input).empty())
            << "rank " << plan.rank << ", " << name_of(program.kind) << ": " << describe_op(program, wait.op)
            << " without " << describe_op(program, wait.wait);
      });
    }
  }
  EXPECT_GT(dropped, 100u);
}

}  // namespace terrace::testing_models
