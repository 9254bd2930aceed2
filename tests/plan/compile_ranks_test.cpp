// Programs of several ranks through the checker, which shares no code with the compiler.
#include <gtest/gtest.h>

#include "src/plan/closed_form.h"
#include "tests/plan/ranked_plans.h"

namespace terrace {
namespace {

using namespace testing_models;

constexpr UpdateTime kUpdateTimes[] = {UpdateTime::next_forward, UpdateTime::backward};
constexpr std::size_t kSamples = 12;

PlanRequest ranked_request(const ModelShape& model, const RankShape& shape, std::uint32_t contributions,
                           std::uint64_t chunk_numel) {
  PlanRequest request = roomy_request(model, contributions, chunk_numel);
  request.ranks = shape;
  for (std::uint64_t& bytes : request.budget_bytes) bytes *= shape.ranks;
  return request;
}

// One of the placements and settings that a mesh may meet.
PlanRequest sampled_request(const RankShape& shape, std::uint32_t contributions, UpdateTime updates,
                            std::size_t sample) {
  static const std::vector<TierShares> kAll{kAllDevice, kAllHost, kAllNvme, kHalves, kThirds};
  static const std::uint64_t kChunkNumels[] = {4096, 8192, 65536};
  const DType dtype = sample % 11 == 0 ? DType::f32 : DType::bf16;
  PlanRequest request = ranked_request(tiny_model(sample % 2 == 0 ? 1 : 3, sample % 3 == 0, dtype), shape,
                                       contributions, kChunkNumels[sample % 3]);
  request.updates = updates;
  request.parameters = kAll[sample % kAll.size()];
  request.gradients = kAll[sample / 5 % kAll.size()];
  request.optimizer_state = kAll[sample / 25 % kAll.size()];
  request.activations = kAll[(sample + 2) % kAll.size()];
  request.recompute = sample % 2 == 0 ? Recompute::always : Recompute::never;
  request.slack = static_cast<int>(2 - sample / 3 % 3);
  request.ahead = sample % 5 != 1;
  if (sample % 7 == 3) request.cut_ranks = 1;                      // units of fewer chunks than ranks
  static const std::uint64_t kPersist[] = {0, 65, 9001, 1 << 20};  // a tied head; what has no block; all
  request.persist_below_numel = kPersist[sample / 2 % 4];
  if (sample % 13 == 5) {
    request.has_store = false;
    if (request.optimizer_state != kAllDevice) request.optimizer_state = kAllHost;
  }
  return request;
}

// The product of meshes, contributions and update times, each with other placements of all that there are.
class CompileRanksMesh : public testing::TestWithParam<std::size_t> {};

TEST_P(CompileRanksMesh, EveryPlacementIsLegalWithRoomAndWithTheLeast) {
  const RankShape shape = mesh_shapes()[GetParam()];
  std::size_t plans = GetParam() * 4 * 2 * kSamples;
  for (const std::uint32_t contributions : {1u, 2u, 3u, 5u}) {
    for (const UpdateTime updates : kUpdateTimes) {
      for (std::size_t i = 0; i < kSamples; ++i, ++plans) {
        const std::size_t sample = plans * 7 + plans / kSamples;
        SCOPED_TRACE(words(shape) + ", C " + std::to_string(contributions) + ", " + std::to_string(sample));
        PlanRequest request = sampled_request(shape, contributions, updates, sample);
        const std::vector<Plan> roomy = make_plans(request);
        ASSERT_TRUE(roomy[0].fits) << to_text(roomy[0].ledger);
        ASSERT_EQ(roomy.size(), shape.ranks);
        expect_legal(request, roomy);
        if (HasFailure()) return;
        if (i % 3 > 0) continue;
        request.budget_bytes = {1, 1, request.budget_bytes[2]};
        const auto least_bytes = make_plans(request)[0].least_bytes;
        request.budget_bytes = {least_bytes[0], least_bytes[1], request.budget_bytes[2]};
        const std::vector<Plan> least = make_plans(request);
        ASSERT_TRUE(least[0].fits) << to_text(least[0].ledger);
        expect_legal(request, least);
        if (HasFailure()) return;
        --request.budget_bytes[0];
        EXPECT_FALSE(make_plans(request)[0].fits);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CompileRanksMesh, testing::Range<std::size_t>(0, mesh_shapes().size()));

// Settings under which all that ranks do differently is done: sums that go home, states on disk.
PlanRequest small_request(const RankShape& shape, std::uint32_t contributions, UpdateTime updates) {
  PlanRequest request = ranked_request(tiny_model(1, true), shape, contributions, 8192);
  request.updates = updates;
  request.parameters = request.optimizer_state = request.gradients = kHalves;
  request.activations = kAllHost;
  request.recompute = Recompute::always;
  request.slack = 0;
  return request;
}

TEST(CompileRanks, DroppedWaitsAreAllRefused) {
  for (const RankShape& shape :
       {RankShape{Stage::replicated, 2, 1}, RankShape{Stage::optimizer, 2, 1},
        RankShape{Stage::gradients, 3, 1}, RankShape{Stage::parameters, 2, 1},
        RankShape{Stage::parameters, 4, 2}, RankShape{Stage::replicated, 2, 1, Reduction::last},
        RankShape{Stage::gradients, 2, 1, Reduction::grouped},
        RankShape{Stage::parameters, 4, 2, Reduction::hierarchical}}) {
    for (const std::uint32_t contributions : {1u, 3u}) {
      for (const UpdateTime updates : kUpdateTimes) {
        const PlanRequest request = small_request(shape, contributions, updates);
        SCOPED_TRACE(words(shape) + ", C " + std::to_string(contributions));
        expect_dropped_waits_refused(request, make_plans(request));
      }
    }
  }
}

// What a collective sends, from its ranges.
std::uint64_t sent_bytes(const Op& op, const RankTable& table, std::uint32_t rank,
                         std::uint32_t contributions) {
  const auto bytes = [&](Role role) {
    std::uint64_t sum = 0;
    for (const Access& access : op.accesses) sum += access.role == role ? access.bytes : 0;
    return sum;
  };
  if (op.kind == OpKind::all_gather) {
    const auto group = op.group == RankGroup::shard ? table.shard_group(rank) : table.replicate_group(rank);
    return bytes(Role::mine) * (group.size() - 1);
  }
  if (op.kind != OpKind::reduce_scatter) return 0;
  const Summands summands(table.shape(), contributions);
  const std::uint64_t senders = summands.senders(op.group, rank, op.micro_batch / table.ranks());
  return bytes(Role::grads) - bytes(Role::received) / senders;
}

TEST(CompileRanks, SendsWhatTheClosedFormsSay) {
  for (const RankShape& shape : mesh_shapes()) {
    for (const std::uint32_t rounds : {1u, 2u, 3u}) {
      for (const UpdateTime updates : kUpdateTimes) {
        PlanRequest request = ranked_request(even_model(), shape, rounds * shape.ranks, 8192);
        request.parameters = kAllHost;  // a piece is gathered for every use
        request.updates = updates;
        request.ahead = false;  // and given back after it
        const std::uint64_t n = shape.ranks, shards = shape.shard_size();
        std::uint64_t numel = 0;
        if (shape.stage == Stage::parameters) {
          numel = hybrid_sent_numel(kEvenNumel, shards, shape.replicas, rounds, shape.reduction);
          if (shape.replicas == 1) {
            EXPECT_EQ(numel, sent_numel(shape.stage, kEvenNumel, n, rounds));
          }
          // The forms count a gather for the last unit's forward, which is one with its backward.
          numel -= rounds * kEvenLastNumel / shards * (shards - 1);
        } else {
          numel = sent_numel(shape.stage, kEvenNumel, n, rounds, shape.reduction);
        }
        for (const Plan& plan : make_plans(request)) {
          ASSERT_TRUE(plan.fits);
          std::uint64_t sent = 0;
          const StepProgram& train = plan.program(ProgramKind::train);
          for (const Op& op : train.ops) {
            const std::uint64_t bytes = sent_bytes(op, plan.ranks, plan.rank, request.contributions);
            EXPECT_EQ(op.lane == Lane::collective ? op.bytes : 0, bytes);
            sent += bytes;
          }
          EXPECT_EQ(sent, numel * 2) << words(shape) << ", M " << rounds;
          EXPECT_EQ(lane_bytes(train)[static_cast<std::size_t>(Lane::collective)], sent);
        }
      }
    }
  }
}

// While one piece is used the next two may come from other ranks; the next alone where it comes from home.
TEST(CompileRanks, WithRoomTwoBlocksAreGatheredAhead) {
  for (const RankShape& shape : {RankShape{Stage::parameters, 2, 1}, RankShape{Stage::parameters, 4, 2},
                                 RankShape{Stage::gradients, 2, 1}, RankShape{Stage::replicated, 2, 1}}) {
    PlanRequest request = ranked_request(tiny_model(8, true), shape, 2, 8192);
    request.parameters = kAllHost;
    const auto piece_bytes = [&](int slack) {
      request.slack = slack;
      const Plan plan = make_plan(request);
      EXPECT_TRUE(plan.fits);
      return plan.pools[static_cast<std::size_t>(Pool::piece)];
    };
    const std::uint64_t block = request.model.units[1].padded_numel() * 2;
    const std::uint64_t ahead = shape.stage == Stage::parameters ? 2 : 1;
    EXPECT_EQ(piece_bytes(2), piece_bytes(0) + ahead * block) << words(shape);
    EXPECT_EQ(piece_bytes(1), piece_bytes(0) + block) << words(shape);
  }
}

TEST(CompileRanks, StoresWhatTheClosedFormsSay) {
  for (const RankShape& shape : mesh_shapes()) {
    PlanRequest request = ranked_request(even_model(), shape, 1, 8192);  // one contribution: sums of 2 bytes
    request.parameters = kAllHost;
    request.gradients = request.optimizer_state = kAllHost;
    request.slack = 0;
    for (const Plan& plan : make_plans(request)) {
      ASSERT_TRUE(plan.fits);
      std::uint64_t params = 0, sums = 0, states = 0;
      for (const Slot& slot : plan.residents.slots) {
        if (slot.item == Item::piece || slot.item == Item::param_chunk) params += slot.bytes;
        if (slot.item == Item::grad_sum) sums += slot.bytes;
        if (slot.item == Item::state_chunk && slot.tier == Tier::host)
          states +=
              12 * plan.chunks[slot.chunk].numel;  // without the trailer, and the room that streams leave
      }
      if (shape.stage == Stage::optimizer && shape.ranks > 1) {
        // The whole gradient stands in the pool of contributions until the round ends; beside it the own
        // sums.
        const std::uint64_t contributions = plan.pools[static_cast<std::size_t>(Pool::contribution)];
        EXPECT_EQ(contributions, 2 * kEvenNumel);
        EXPECT_EQ(sums, 2 * kEvenNumel / shape.ranks);
        sums = contributions;
      }
      EXPECT_EQ(params + sums + states, shape.stage == Stage::parameters
                                            ? hybrid_state_bytes(kEvenNumel, shape.shard_size())
                                            : model_state_bytes(shape.stage, kEvenNumel, shape.ranks))
          << words(shape) << ": " << params << " + " << sums << " + " << states;
    }
  }
}

}  // namespace
}  // namespace terrace
