// Units that stay whole on every rank while the others are sharded: through the checker, and what they cost.
#include <gtest/gtest.h>

#include "src/plan/closed_form.h"
#include "tests/plan/program_changes.h"
#include "tests/plan/ranked_run.h"

namespace terrace {
namespace {

using namespace testing_models;

// Of run_of's model: the head and the embedding, not the block; all.
constexpr std::uint64_t kSome = 9001, kAll = 1u << 20;
const RankShape kThreeShards{Stage::parameters, 3, 1};
const std::vector<RankShape> kSharded{kParameters, kThreeShards, kHybrid};

TEST(CompilePersist, DroppedWaitsAreAllRefused) {
  for (const RankShape& shape : kSharded) {
    for (const std::uint32_t contributions : {1u, 3u}) {
      for (const UpdateTime updates : kUpdateTimes) {
        SCOPED_TRACE(words(shape) + ", C " + std::to_string(contributions));
        const RankedRun run = run_of(shape, contributions, updates, kThirds, kHalves, kSome);
        expect_dropped_waits_refused(run.request, run.plans);
      }
    }
  }
}

TEST(CompilePersist, MissingOperationsAreAllRefused) {
  for (const RankShape& shape : kSharded) {
    for (const UpdateTime updates : kUpdateTimes) {
      for (const TierShares& parameters : {kAllDevice, kHalves}) {
        const RankedRun run = run_of(shape, 2, updates, parameters, kHalves, kSome);
        for (const Plan& plan : run.plans) {
          for (const StepProgram& program : plan.programs) {
            for (OpId id = 0; id < program.ops.size(); ++id) {
              const StepProgram left = without(program, id);
              EXPECT_TRUE(!run.rules(plan.rank, left).empty() || !run.family_rules(plan.rank, left).empty())
                  << words(shape) << ", rank " << plan.rank << ", " << name_of(program.kind) << " without "
                  << describe_op(program, id);
            }
          }
        }
      }
    }
  }
}

// The renewal left out, or not brought home: what other ranks updated is read as it was, in this step or the
// next.
TEST(CompilePersist, ForgottenRenewalsAreRefused) {
  for (const RankShape& shape : kSharded) {
    for (const UpdateTime updates : kUpdateTimes) {
      for (const TierShares& parameters : {kAllDevice, kAllHost, kAllNvme}) {
        const RankedRun run = run_of(shape, 3, updates, parameters, kAllHost, kSome);
        const RankTable& table = run.plans[0].ranks;
        for (const ProgramKind kind : {ProgramKind::train, ProgramKind::drain, ProgramKind::materialize}) {
          const StepProgram program = run.program(0, kind);
          const OpId gather = first(program, [&](const Op& op) {
            return op.kind == OpKind::all_gather && op.group == RankGroup::shard &&
                   table.keeps_whole(op.unit);
          });
          const std::uint32_t unit = program.ops[gather].unit;
          const std::set<Rule> rules = run.rules(0, without(program, gather));
          EXPECT_TRUE(has(rules, Rule::home));
          if (kind == ProgramKind::train) {
            EXPECT_TRUE(has(rules, Rule::operand));
          }
          EXPECT_TRUE(has(run.family_rules(0, without(program, gather)), Rule::collective));
          if (parameters == kAllDevice) {
            EXPECT_NE(run.plans[0].residents.piece_home[unit], kNone) << "gathered in its home";
            continue;
          }
          const OpId brings = first(program, [&](const Op& op) {
            return op.unit == unit && op.chunk != kNone && !table.holds(0, op.chunk) &&
                   op.kind == (parameters == kAllHost ? OpKind::copy_to_host : OpKind::write_param);
          });
          EXPECT_TRUE(has(run.rules(0, without(program, brings)), Rule::home));
        }
      }
    }
  }
}

// A program that treats units as the other setting does is refused: homes are missing, or gathers.
TEST(CompilePersist, TheCheckerKnowsWhatIsKeptWhole) {
  for (const RankShape& shape : kSharded) {
    const RankedRun some = run_of(shape, 2, UpdateTime::next_forward, kAllHost, kAllHost, kSome);
    const RankedRun none = run_of(shape, 2, UpdateTime::next_forward);
    EXPECT_FALSE(check_program(none.program(0), some.input(0)).empty());
    CheckInput partly = some.input(0);
    partly.chunks[0].kept_whole = !partly.chunks[0].kept_whole;
    const auto violations = check_program(some.program(0), partly);
    ASSERT_FALSE(violations.empty());
    EXPECT_EQ(violations[0].rule, Rule::input);
  }
}

// However many contributions there are, and wherever the parameters lie; on a rank without any, too.
TEST(CompilePersist, KeptUnitsAreGatheredOnceAStep) {
  for (const RankShape& shape : kSharded) {
    for (const TierShares& parameters : {kAllDevice, kAllHost, kAllNvme}) {
      for (const std::uint32_t contributions : {1u, 5u, 7u}) {
        const RankedRun run =
            run_of(shape, contributions, UpdateTime::next_forward, parameters, kAllHost, kSome);
        for (const Plan& plan : run.plans) {
          std::vector<int> gathers(run.request.model.units.size());
          for (const Op& op : run.program(plan.rank).ops) {
            if (op.kind == OpKind::all_gather && op.group == RankGroup::shard) ++gathers[op.unit];
          }
          EXPECT_EQ(gathers.front(), 1);
          EXPECT_EQ(gathers.back(), 1);
        }
      }
    }
  }
}

TEST(CompilePersist, SendsAndStoresWhatTheClosedFormsSay) {
  struct Case {
    std::uint64_t below, kept;
  };
  constexpr Case kCases[] = {{0, 0},
                             {1, 0},
                             {12 * kBlockNumel, 0},
                             {12 * kBlockNumel + 1, kEvenNumel - kEvenLastNumel},
                             {~std::uint64_t{0}, kEvenNumel}};
  for (const RankShape& shape : mesh_shapes()) {
    if (shape.stage != Stage::parameters) continue;
    const std::uint64_t shards = shape.shard_size();
    for (const auto& [below, kept] : kCases) {
      for (const std::uint32_t rounds : {1u, 2u, 3u}) {
        PlanRequest request = roomy_request(even_model(), rounds * shape.ranks, 8192);
        for (std::uint64_t& bytes : request.budget_bytes) bytes *= shape.ranks;
        request.ranks = shape;
        request.parameters = request.gradients = request.optimizer_state = kAllHost;
        request.slack = 0;
        request.ahead = false;  // a piece is given back after every use
        request.persist_below_numel = below;
        std::uint64_t numel = hybrid_sent_numel(kEvenNumel, shards, shape.replicas, rounds) -
                              kept_whole_unsent_numel(kept, shards, rounds);
        // The forms count a gather for the last unit's forward, which is one with its backward.
        if (kept < kEvenNumel) numel -= rounds * kEvenLastNumel / shards * (shards - 1);
        if (kept == kEvenNumel && shape.replicas == 1) {
          EXPECT_EQ(numel, sent_numel(Stage::gradients, kEvenNumel, shape.ranks, rounds));
        }
        const std::vector<Plan> plans = make_plans(request);
        ASSERT_TRUE(plans[0].fits);
        std::uint64_t params = 0;
        for (const Plan& plan : plans) {
          const auto sent = lane_bytes(plan.program(ProgramKind::train));
          EXPECT_EQ(sent[static_cast<std::size_t>(Lane::collective)], 2 * numel)
              << words(shape) << ", M " << rounds << ", below " << below;
          std::uint64_t own = 0;
          for (const Slot& slot : plan.residents.slots)
            own += slot.item == Item::piece || slot.item == Item::param_chunk ? slot.bytes : 0;
          EXPECT_EQ(own, 2 * kEvenNumel / shards + kept_whole_bytes(kept, shards));
          params += own;
        }
        for (const LedgerLine& line : plans[0].ledger.lines) {  // of the node
          if (line.tier == Tier::host && line.name == "parameters") {
            EXPECT_EQ(line.bytes, params);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace terrace
