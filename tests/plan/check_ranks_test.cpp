// Programs of several ranks: what a rank must not do, and what ranks must not do together.
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "tests/plan/program_changes.h"
#include "tests/plan/ranked_run.h"

namespace terrace {
namespace {

using namespace testing_models;

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

// Also where this rank itself has no use for what it sends.
TEST(CheckRanks, RefusesToSendOtherData) {
  RankedRun run = run_of(kParameters, 1, UpdateTime::next_forward);
  StepProgram changed = run.program(1);  // has no contribution: no forward of its own would notice
  const CheckInput input = run.input(1);
  Op& loads = changed.ops[first(changed, [&](const Op& op) {
    return op.kind == OpKind::copy_to_device && op.chunk != kNone && op.unit == 1;
  })];
  const Residents& residents = run.plans[1].residents;
  for (std::uint32_t c = 0; c < input.chunks.size(); ++c) {
    if (residents.param_home[c] != kNone && input.chunks[c].unit != 1 &&
        input.chunks[c].numel == input.chunks[loads.chunk].numel)
      loads.accesses[0].slot = residents.param_home[c];
  }
  EXPECT_TRUE(has(run.rules(1, changed), Rule::operand));

  changed = run.program(1);
  changed.ops[first(changed, OpKind::all_gather, RankGroup::shard)].accesses[1].bytes -= 2;
  EXPECT_TRUE(has(run.rules(1, changed), Rule::operand));

  run = run_of(kOptimizer, 1, UpdateTime::backward);  // every unit's contribution is there until the end
  changed = run.program(0);
  const auto exchange = [&](std::uint32_t unit) -> Op& {
    return changed.ops[first(
        changed, [&](const Op& op) { return op.kind == OpKind::reduce_scatter && op.unit == unit; })];
  };
  ASSERT_EQ(exchange(0).accesses[0].bytes, exchange(2).accesses[0].bytes);
  exchange(0).accesses[0].slot = exchange(2).accesses[0].slot;
  EXPECT_EQ(run.rules(0, changed), std::set<Rule>{Rule::operand});
}

TEST(CheckRanks, RefusesASumThatIsRoundedBeforeItsEnd) {
  const RankedRun run = run_of(kReplicated, 2, UpdateTime::next_forward, kAllHost, kAllDevice);
  StepProgram changed = run.program(0);
  const OpId last =
      first(changed, [](const Op& op) { return op.kind == OpKind::fold && op.micro_batch == 1; });
  Op& before = changed.ops[first(changed, [&](const Op& op) {
    return op.kind == OpKind::fold && op.micro_batch == 0 && op.chunk == changed.ops[last].chunk;
  })];
  before.accesses.push_back(changed.ops[last].accesses[2]);
  EXPECT_EQ(run.rules(0, changed), std::set<Rule>{Rule::operand});
}

// A rank's own sum: of all of its contributions, once, and not the contribution in its place.
TEST(CheckRanks, RefusesALocalSumThatIsNotWhole) {
  for (const RankShape& shape : {kLast, kLastSharded}) {
    const RankedRun run = run_of(shape, 3, UpdateTime::next_forward);  // rank 0 has two, rank 1 one
    const StepProgram program = run.program(0);
    EXPECT_EQ(program.summands, 2u);
    StepProgram changed = program;
    changed.summands = 3;
    EXPECT_TRUE(has(run.rules(0, changed), Rule::count));
    const OpId rounds = first(program, OpKind::round_sum);
    std::set<Rule> rules = run.rules(0, without(program, rounds));
    EXPECT_TRUE(has(rules, Rule::count));
    EXPECT_TRUE(has(rules, Rule::operand));  // the last contribution alone would be sent
    // Rounded before the last contribution is added.
    changed = program;
    const std::uint32_t unit = program.ops[rounds].unit;
    const OpId adds = first(program, [&](const Op& op) {
      return op.kind == OpKind::accumulate && op.unit == unit && op.micro_batch == 2;
    });
    ASSERT_LT(adds, rounds);
    std::swap(changed.ops[adds], changed.ops[rounds]);
    EXPECT_FALSE(run.rules(0, changed).empty());
    // The first contribution is added to what was there before.
    changed = program;
    changed.ops[first(program, OpKind::accumulate)].accesses[1].mode = AccessMode::update;
    EXPECT_TRUE(has(run.rules(0, changed), Rule::operand));
    // Added twice; to the sum of another unit.
    changed = program;
    changed.ops[first(program, OpKind::accumulate)].micro_batch = 2;
    EXPECT_TRUE(has(run.rules(0, changed), Rule::count));
    changed = program;
    const std::vector<SlotId>& homes = run.plans[0].residents.local_sum_home;
    Op& other = changed.ops[first(program, OpKind::accumulate)];
    other.accesses[1].slot = homes[other.unit == 0 ? 1 : 0];
    other.accesses[1].bytes = std::min(other.accesses[1].bytes, changed.slots[other.accesses[1].slot].bytes);
    EXPECT_FALSE(run.rules(0, changed).empty());
    // Exchanged each round, as it would be without a local sum.
    CheckInput input = run.input(0);
    input.ranks.reduction = Reduction::each;
    EXPECT_FALSE(check_program(program, input).empty());
  }
}

TEST(CheckRanks, RefusesAGroupsSumOfOtherContributions) {
  for (const RankShape& shape : {kGrouped, kHierarchical}) {
    const RankedRun run = run_of(shape, 2 * shape.ranks, UpdateTime::next_forward);
    const StepProgram program = run.program(0);
    EXPECT_EQ(program.summands, shape.reduction == Reduction::grouped ? 2u : 4u);
    const OpId id = first(program, OpKind::sum_group);
    StepProgram changed = program;
    changed.ops[id].accesses[0].bytes /= 2;
    EXPECT_TRUE(has(run.rules(0, changed), Rule::operand));
    changed = program;
    changed.ops[id].micro_batch += shape.ranks;  // of the other round
    std::set<Rule> rules = run.rules(0, changed);
    EXPECT_TRUE(has(rules, Rule::count));
    EXPECT_TRUE(has(rules, Rule::operand));
    rules = run.rules(0, without(program, id));
    EXPECT_TRUE(has(rules, Rule::count));
    EXPECT_TRUE(has(rules, Rule::undefined));
    // A fold of what was received in place of the sum.
    for (const RankShape& other : {kGrouped, kHierarchical}) {
      if (other.reduction == shape.reduction) continue;
      CheckInput input = run.input(0);
      input.ranks.reduction = other.reduction;
      EXPECT_FALSE(check_program(program, input).empty());
    }
  }
  // Between replicas go sums, not contributions.
  const RankedRun run = run_of(kHierarchical, 4, UpdateTime::next_forward);
  StepProgram changed = run.program(0);
  Op& between = changed.ops[first(changed, OpKind::reduce_scatter, RankGroup::replicate)];
  const Op& within = changed.ops[first(changed, OpKind::reduce_scatter, RankGroup::shard)];
  between.accesses[0].slot = within.accesses[0].slot;
  EXPECT_TRUE(has(run.rules(0, changed), Rule::operand));
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
