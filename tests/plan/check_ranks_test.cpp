// Programs of several ranks: what a rank must not do, and what ranks must not do together.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "tests/plan/program_changes.h"
#include "tests/plan/ranked_plans.h"

namespace terrace {
namespace {

using namespace testing_models;

const RankShape kReplicated{Stage::replicated, 2, 1}, kOptimizer{Stage::optimizer, 2, 1},
    kGradients{Stage::gradients, 3, 1}, kParameters{Stage::parameters, 2, 1},
    kHybrid{Stage::parameters, 4, 2};
const std::vector<RankShape> kShapes{kReplicated, kOptimizer, kGradients, kParameters, kHybrid};
constexpr UpdateTime kUpdateTimes[] = {UpdateTime::next_forward, UpdateTime::backward};

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

RankedRun run_of(const RankShape& shape, std::uint32_t contributions, UpdateTime updates,
                 const TierShares& parameters = kAllHost, const TierShares& others = kAllHost) {
  RankedRun run;
  run.request = roomy_request(tiny_model(1, false), contributions, 4096);
  for (std::uint64_t& bytes : run.request.budget_bytes) bytes *= shape.ranks;
  run.request.ranks = shape;
  run.request.updates = updates;
  run.request.parameters = parameters;
  run.request.gradients = run.request.optimizer_state = others;
  run.request.slack = 0;
  run.plans = make_plans(run.request);
  require_legal(run.request.model, run.plans, contributions);
  return run;
}

OpId first(const StepProgram& program, const std::function<bool(const Op&)>& wanted) {
  for (OpId id = 0; id < program.ops.size(); ++id) {
    if (wanted(program.ops[id])) return id;
  }
  ADD_FAILURE() << "no such operation";
  return 0;
}
OpId first(const StepProgram& program, OpKind kind, RankGroup group = RankGroup::world) {
  return first(program, [&](const Op& op) { return op.kind == kind && op.group == group; });
}

testing::AssertionResult has(const std::set<Rule>& rules, Rule wanted) {
  if (rules.contains(wanted)) return testing::AssertionSuccess();
  auto result = testing::AssertionFailure() << "wanted " << name_of(wanted) << ", found";
  for (const Rule rule : rules) result << " " << name_of(rule);
  return result;
}

TEST(CheckRanks, RefusesEveryMissingOperation) {
  for (const RankShape& shape : kShapes) {
    for (const std::uint32_t contributions : {1u, 3u}) {
      for (const UpdateTime updates : kUpdateTimes) {
        const RankedRun run = run_of(shape, contributions, updates, kHalves, kHalves);
        std::size_t removed = 0;
        for (const Plan& plan : run.plans) {
          for (const StepProgram& program : plan.programs) {
            for (OpId id = 0; id < program.ops.size(); ++id, ++removed) {
              const StepProgram left = without(program, id);
              EXPECT_TRUE(!run.rules(plan.rank, left).empty() || !run.family_rules(plan.rank, left).empty())
                  << words(shape) << ", rank " << plan.rank << ", " << name_of(program.kind) << " without "
                  << describe_op(program, id);
            }
          }
        }
        EXPECT_GT(removed, 200u);
      }
    }
  }
}

TEST(CheckRanks, RefusesWhatIsAnotherRanks) {
  const RankedRun run = run_of(kParameters, 3, UpdateTime::next_forward);
  const CheckInput input = run.input(0);
  const auto foreign = [&](std::uint32_t unit) {
    for (std::uint32_t c = 0; c < input.chunks.size(); ++c) {
      if (input.chunks[c].unit == unit && input.chunks[c].owner != 0) return c;
    }
    ADD_FAILURE() << "no foreign chunk";
    return 0u;
  };
  for (const OpKind kind : {OpKind::fold, OpKind::update}) {
    StepProgram changed = run.program(0);
    Op& op = changed.ops[first(changed, kind)];
    op.chunk = foreign(op.unit);
    EXPECT_TRUE(has(run.rules(0, changed), Rule::count)) << name_of(kind);
  }
  // Another rank's contribution.
  StepProgram changed = run.program(0);
  for (Op& op : changed.ops) {
    if (op.lane == Lane::compute && op.micro_batch == 2) op.micro_batch = 1;
  }
  EXPECT_TRUE(has(run.rules(0, changed), Rule::count));
  // The verdict of this rank alone.
  changed = run.program(0);
  changed.ops[first(changed, OpKind::grad_stats)].lane = Lane::optimizer;
  EXPECT_TRUE(has(run.rules(0, changed), Rule::form));
  // All of it is what another rank may do.
  EXPECT_FALSE(run.rules(1, run.program(0)).empty());
  EXPECT_TRUE(run.rules(1, run.program(1)).empty());
}

TEST(CheckRanks, RefusesAnExchangeThatIsMissingOrDoubledOrOther) {
  const RankedRun run = run_of(kGradients, 4, UpdateTime::next_forward);
  const StepProgram program = run.program(0);
  const OpId id = first(program, OpKind::reduce_scatter);
  EXPECT_TRUE(has(run.rules(0, without(program, id)), Rule::count));
  EXPECT_TRUE(has(run.family_rules(0, without(program, id)), Rule::collective));

  StepProgram doubled = program;
  doubled.ops.push_back(program.ops[id]);
  EXPECT_TRUE(has(run.rules(0, doubled), Rule::count));
  EXPECT_TRUE(has(run.family_rules(0, doubled), Rule::collective));

  StepProgram changed = program;
  std::erase_if(changed.ops[id].accesses, [](const Access& access) { return access.role == Role::grads; });
  EXPECT_TRUE(has(run.rules(0, changed), Rule::operand));
  EXPECT_TRUE(has(run.family_rules(0, changed), Rule::collective));
  changed = program;
  std::erase_if(changed.ops[id].accesses, [](const Access& access) { return access.role == Role::received; });
  EXPECT_TRUE(has(run.rules(0, changed), Rule::operand));

  for (const std::uint32_t other : {1u, 3u}) {  // not the first of a round; of another round
    changed = program;
    changed.ops[id].micro_batch = other;
    EXPECT_TRUE(has(run.rules(0, changed), Rule::count));
  }
  changed = program;
  changed.ops[id].group = RankGroup::shard;
  EXPECT_TRUE(has(run.rules(0, changed), Rule::form));
  changed = program;
  changed.ops[id].predicated = true;
  EXPECT_TRUE(has(run.rules(0, changed), Rule::predicate));

  // The contribution of another rank, as a fold would find it in its place.
  changed = program;
  const OpId fold =
      first(changed, [](const Op& op) { return op.kind == OpKind::fold && op.micro_batch == 1; });
  for (OpId at = fold; at-- > 0;) {  // what brings it
    Op& op = changed.ops[at];
    if (op.kind != OpKind::copy_to_host || op.chunk != changed.ops[fold].chunk || op.micro_batch != 1)
      continue;
    op.accesses[0].offset_bytes = 0;
    break;
  }
  EXPECT_TRUE(has(run.rules(0, changed), Rule::operand));
}

TEST(CheckRanks, RefusesAGatherOfOtherRanges) {
  for (const RankShape& shape : {kParameters, kGradients, kHybrid}) {
    const RankedRun run = run_of(shape, 1, UpdateTime::next_forward);
    const StepProgram program = run.program(0);
    const OpId id = first(program, OpKind::all_gather, RankGroup::shard);
    const auto change = [&](const std::function<void(std::vector<Access>&)>& fn) {
      StepProgram changed = program;
      fn(changed.ops[id].accesses);
      return run.rules(0, changed);
    };
    EXPECT_TRUE(has(change([](auto& list) { std::swap(list[0].role, list[1].role); }), Rule::operand));
    // Another range is sent, the rest of the unit is written.
    EXPECT_TRUE(has(change([](auto& list) {
                      list.resize(2);
                      const std::uint64_t whole = list[0].bytes + list[1].bytes;
                      list[0].offset_bytes = 0;
                      list[1].offset_bytes = list[0].bytes = whole / 2;
                      list[1].bytes = whole - whole / 2;
                    }),
                    Rule::operand));
    EXPECT_TRUE(has(change([](auto& list) { list[0].bytes -= 2; }), Rule::operand));
    EXPECT_TRUE(has(change([](auto& list) { list[1].bytes -= 2; }), Rule::operand));
    EXPECT_TRUE(has(change([](auto& list) { list.erase(list.begin()); }), Rule::operand));
    EXPECT_TRUE(has(change([](auto& list) { list.resize(1); }), Rule::operand));

    StepProgram changed = program;
    changed.ops[id].accesses[1].bytes -= 2;
    EXPECT_TRUE(has(run.family_rules(0, changed), Rule::collective));
    changed = program;
    changed.ops[id].group = RankGroup::world;
    EXPECT_TRUE(has(run.rules(0, changed), Rule::form));
  }
}

// The collectives of a program, and its commit.
std::vector<OpId> together(const StepProgram& program) {
  std::vector<OpId> found;
  for (OpId id = 0; id < program.ops.size(); ++id) {
    if (program.ops[id].lane == Lane::collective || program.ops[id].kind == OpKind::commit)
      found.push_back(id);
  }
  return found;
}

TEST(CheckRanks, RefusesCollectivesInAnotherOrder) {
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
        // Gathers of a shard and of replicas have one rank in common: a swap on one rank makes nobody wait
        // for ever.
        const bool apart = a.kind == OpKind::all_gather && b.kind == OpKind::all_gather && a.group != b.group;
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
TEST(CheckRanks, RefusesAWaitInACircleOfGroups) {
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

// The renewal of a unit's parameters left out: what other ranks updated is read as it was.
TEST(CheckRanks, RefusesParametersThatOtherRanksHaveUpdatedSince) {
  for (const RankShape& shape : {kOptimizer, kGradients}) {
    for (const UpdateTime updates : kUpdateTimes) {
      for (const TierShares& parameters : {kAllDevice, kAllHost, kAllNvme}) {
        const RankedRun run = run_of(shape, 3, updates, parameters);
        for (const ProgramKind kind : {ProgramKind::train, ProgramKind::drain, ProgramKind::materialize}) {
          const StepProgram program = run.program(0, kind);
          const OpId gather = first(program, OpKind::all_gather, RankGroup::shard);
          const std::uint32_t unit = program.ops[gather].unit;
          const std::set<Rule> rules = run.rules(0, without(program, gather));
          EXPECT_TRUE(has(rules, Rule::home));
          if (kind == ProgramKind::train) {
            EXPECT_TRUE(has(rules, Rule::operand));
          }
          if (parameters == kAllDevice) continue;
          // Gathered, but not brought home.
          const OpId brings = first(program, [&](const Op& op) {
            return op.unit == unit && op.chunk != kNone && run.input(0).chunks[op.chunk].owner != 0 &&
                   op.kind == (parameters == kAllHost ? OpKind::copy_to_host : OpKind::write_param);
          });
          EXPECT_TRUE(has(run.rules(0, without(program, brings)), Rule::home));
        }
      }
    }
  }
}

TEST(CheckRanks, RefusesAnUpdateBeforeTheSumCameFromTheReplicas) {
  for (const RankShape& shape : {kReplicated, kHybrid}) {
    for (const std::uint32_t contributions : {1u, 3u}) {
      const RankedRun run = run_of(shape, contributions, UpdateTime::backward);
      const StepProgram program = run.program(0);
      const OpId gather = first(program, OpKind::all_gather, RankGroup::replicate);
      EXPECT_TRUE(has(run.rules(0, without(program, gather)), Rule::operand));
      // After the copy that brings a sum of another replica to its update.
      StepProgram late = without(program, gather);
      const OpId after = first(late, [&](const Op& op) {
        return op.kind == OpKind::update && op.unit == program.ops[gather].unit &&
               run.input(0).chunks[op.chunk].owner != 0;
      });
      late.ops.insert(late.ops.begin() + after, program.ops[gather]);
      for (OpId id = after; id < late.ops.size(); ++id) {
        for (OpId& wait : late.ops[id].waits) wait += id > after && wait >= after ? 1 : 0;
      }
      EXPECT_TRUE(has(run.rules(0, late), Rule::undefined));

      const RankedRun forward = run_of(shape, contributions, UpdateTime::next_forward);
      const StepProgram train = forward.program(0);
      const OpId sums = first(train, OpKind::all_gather, RankGroup::replicate);
      EXPECT_TRUE(has(forward.rules(0, without(train, sums)), Rule::home));
    }
  }
}

// The sum that a rank has added up itself is not that which the replicas have.
TEST(CheckRanks, RefusesAnUpdateFromTheAccumulator) {
  const RankedRun run = run_of(kReplicated, 3, UpdateTime::backward);
  StepProgram changed = run.program(0);
  const CheckInput input = run.input(0);
  Op& update = changed.ops[first(
      changed, [&](const Op& op) { return op.kind == OpKind::update && input.chunks[op.chunk].owner == 0; })];
  update.accesses[1].slot = run.plans[0].residents.accumulator_home[update.chunk];
  EXPECT_TRUE(has(run.rules(0, changed), Rule::operand));
}

TEST(CheckRanks, RefusesAStateCopyThatIsNotWrittenOrInTheStore) {
  for (const RankShape& shape : {kReplicated, kHybrid}) {
    for (const UpdateTime updates : kUpdateTimes) {
      const RankedRun run = run_of(shape, 2, updates, kAllHost, kAllNvme);
      const Residents& residents = run.plans[0].residents;
      for (const ProgramKind kind :
           {ProgramKind::train, ProgramKind::train_commit, ProgramKind::materialize}) {
        const StepProgram program = run.program(0, kind);
        const OpId id = first(program, [&](const Op& op) {
          return op.kind == OpKind::write_state && residents.state_copy[op.chunk] != kNone;
        });
        const std::set<Rule> rules = run.rules(0, without(program, id));
        EXPECT_TRUE(has(rules, Rule::count));
        // Where the write was that of the step before, the read of this one finds it missing.
        const bool pending = program.ops[id].predicated && updates == UpdateTime::backward;
        EXPECT_TRUE(has(rules, pending ? Rule::operand : Rule::home));
        StepProgram changed = program;
        changed.ops[id].accesses[1].slot = residents.store_extent[program.ops[id].chunk];
        EXPECT_TRUE(has(run.rules(0, changed), Rule::home));
      }
      // A state comes from the copy; from the store only when a run starts.
      StepProgram changed = run.program(0);
      Op& read = changed.ops[first(changed, [&](const Op& op) {
        return op.kind == OpKind::read_state && residents.state_copy[op.chunk] != kNone;
      })];
      read.accesses[0].slot = residents.store_extent[read.chunk];
      EXPECT_TRUE(has(run.rules(0, changed), Rule::operand));
    }
  }
}

TEST(CheckRanks, RefusesMeshesAndOwnersThatAreNone) {
  const RankedRun run = run_of(kHybrid, 1, UpdateTime::next_forward);
  const StepProgram program = run.program(0);
  const auto change = [&](const std::function<void(CheckInput&)>& fn) {
    CheckInput input = run.input(0);
    fn(input);
    const auto violations = check_program(program, input);
    return !violations.empty() && violations[0].rule == Rule::input;
  };
  EXPECT_FALSE(change([](CheckInput&) {}));
  EXPECT_TRUE(change([](CheckInput& input) { input.ranks.replicas = 3; }));
  EXPECT_TRUE(change([](CheckInput& input) { input.ranks.shards = 0; }));
  EXPECT_TRUE(change([](CheckInput& input) { input.ranks.rank = 4; }));
  EXPECT_TRUE(change([](CheckInput& input) { input.ranks.keeps_all_parameters = true; }));
  EXPECT_TRUE(change([](CheckInput& input) { input.chunks[0].owner = 4; }));
  EXPECT_TRUE(change([](CheckInput& input) {  // A B ... A
    std::swap(input.chunks[0].owner, input.chunks[1].owner);
    input.chunks[2].owner = input.chunks[0].owner;
  }));
}

}  // namespace
}  // namespace terrace
