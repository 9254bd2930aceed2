// Programs of models whose sizes fit nothing, through the checker: empty tensors, units without parameters,
// fewer blocks than ranks.
#include <gtest/gtest.h>

#include "tests/plan/ranked_plans.h"

namespace terrace {
namespace {

using namespace testing_models;

// Units of these numels, each a list of tensors; the last unit turns its input into the loss.
ModelShape odd_model(const std::vector<std::vector<std::uint64_t>>& units) {
  ModelShape model;
  for (std::size_t u = 0; u < units.size(); ++u) {
    UnitShape unit;
    unit.name = "u" + std::to_string(u);
    for (std::size_t t = 0; t < units[u].size(); ++t)
      unit.tensors.push_back(
          {unit.name + "." + std::to_string(t), units[u][t], static_cast<std::uint32_t>(t % 2)});
    unit.output_bytes = u + 1 < units.size() ? 1024 : 0;
    unit.saved_bytes = u > 0 && u + 1 < units.size() ? 512 : 0;
    unit.forward_workspace_bytes = unit.backward_workspace_bytes = 64;
    unit.forward_flops = unit.backward_flops = 1e6;
    model.units.push_back(unit);
  }
  return model;
}

std::vector<ModelShape> odd_models() {
  return {odd_model({{1}, {1}}),
          odd_model({{4099, 8191}, {12289}, {4093, 3}}),
          odd_model({{0, 7, 0}, {0, 4099}, {4096, 0}}),
          odd_model({{}, {4099}, {}, {0}, {7}, {}}),
          odd_model({{}, {}, {7}}),
          odd_model({{}, {}}),
          odd_model({{4096}, {8192, 4096}, {4095, 1}})};
}

void expect_all_legal(const std::vector<ModelShape>& models) {
  static const TierShares kPlaces[] = {kAllDevice, kAllHost, kAllNvme, kThirds};
  static const std::uint64_t kPersist[] = {0, 1, 8, 5000, 1 << 20};
  std::size_t sample = 0;
  for (const ModelShape& model : models) {
    std::vector<RankShape> shapes = mesh_shapes();
    for (const Stage stage : {Stage::replicated, Stage::optimizer, Stage::gradients, Stage::parameters})
      shapes.push_back({stage, 5, 1});
    for (const RankShape& shape : shapes) {
      for (const UpdateTime updates : {UpdateTime::next_forward, UpdateTime::backward}) {
        for (const std::uint32_t contributions : {1u, 2u, 7u}) {
          ++sample;
          PlanRequest request = roomy_request(model, contributions, sample % 2 == 0 ? 4096 : 8192);
          request.ranks = shape;
          request.updates = updates;
          request.parameters = kPlaces[sample % 4];
          request.gradients = kPlaces[(sample + 1) % 4];
          request.optimizer_state = kPlaces[sample / 4 % 4];
          request.activations = kAllHost;
          request.slack = static_cast<int>(sample % 3);
          request.persist_below_numel = kPersist[sample % 5];
          for (std::uint64_t& bytes : request.budget_bytes) bytes *= shape.ranks;
          SCOPED_TRACE(words(shape) + ", " + std::to_string(model.units.size()) + " units of " +
                       std::to_string(model.units[0].numel()) + ", sample " + std::to_string(sample));
          const std::vector<Plan> plans = make_plans(request);
          ASSERT_TRUE(plans[0].fits) << to_text(plans[0].ledger);
          expect_legal(request, plans);
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

TEST(CompileSizes, AreLegalOnAnyNumberOfRanks) {
  expect_all_legal(odd_models());
}

// Frozen tensors: whole units, whole blocks at the start, in the middle and at the end of one, and parts of
// blocks.
std::vector<ModelShape> frozen_models() {
  std::vector<ModelShape> models;
  const std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> kFrozen{
      {{0, 0}},
      {{1, 0}, {1, 1}},
      {{2, 1}},
      {{0, 1}, {3, 0}},
      {{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}, {2, 1}}};
  for (const auto& frozen : kFrozen) {
    ModelShape model = odd_model({{20001, 777}, {12289, 97}, {9001, 16384, 5000}, {5, 30011}});
    for (const auto& [unit, tensor] : frozen) {
      TensorShape& shape = model.units[unit].tensors[tensor];
      shape.frozen = shape.master_only = true;
    }
    models.push_back(model);
  }
  return models;
}

TEST(CompileFrozen, IsLegalOnAnyNumberOfRanks) {
  expect_all_legal(frozen_models());
}

// A program that trains what is frozen, or leaves what is not, is refused in every kind that trains.
TEST(CompileFrozen, TheCheckerTellsFrozenChunksFromOthers) {
  for (const UpdateTime updates : {UpdateTime::next_forward, UpdateTime::backward}) {
    PlanRequest request = roomy_request(frozen_models()[2], 2, 8192);
    request.updates = updates;
    request.optimizer_state = kThirds;
    const Plan plan = make_plan(request);
    for (const ProgramKind kind : {ProgramKind::train, ProgramKind::train_commit}) {
      CheckInput input = check_input(request.model, plan, request.contributions);
      ASSERT_TRUE(check_program(plan.program(kind), input).empty());
      std::size_t frozen = 0;
      for (CheckChunk& chunk : input.chunks) {
        frozen += chunk.frozen ? 1 : 0;
        chunk.frozen = !chunk.frozen;
        EXPECT_FALSE(check_program(plan.program(kind), input).empty());
        chunk.frozen = !chunk.frozen;
      }
      EXPECT_GT(frozen, 0u);
    }
  }
}

// Chunks end where frozen blocks do, whatever they are cut for, and tile the unit.
TEST(CompileFrozen, ChunksAreFrozenWholeOrNotAtAll) {
  for (const ModelShape& model : frozen_models()) {
    std::uint64_t frozen = ~std::uint64_t{0};
    for (const std::uint32_t ranks : {1u, 2u, 3u, 5u}) {
      for (const std::uint64_t chunk_numel : {4096u, 8192u, 65536u}) {
        std::uint64_t next = 0, of_unit = 0, sum = 0;
        for (const Chunk& chunk : cut_chunks(model, chunk_numel, ranks)) {
          if (chunk.unit != of_unit) next = 0;
          of_unit = chunk.unit;
          EXPECT_EQ(chunk.begin, next);
          EXPECT_LE(chunk.numel, chunk_numel);
          next += chunk.numel;
          bool all = true, any_block_trains = true;
          for (std::uint64_t block = 0; block < chunk.numel; block += kBlockNumel) {
            bool trains = false;
            for (const Segment& segment : chunk.segments) {
              if (segment.offset >= block + kBlockNumel || segment.offset + segment.numel() <= block)
                continue;
              trains |= !model.units[chunk.unit].tensors[segment.tensor].frozen;
            }
            all &= !trains;
            any_block_trains &= trains;
          }
          EXPECT_EQ(chunk.master_only, all);
          EXPECT_EQ(!chunk.master_only, any_block_trains);
          if (chunk.master_only) sum += chunk.numel;
          EXPECT_EQ(state_slot_bytes(chunk) < state_slot_bytes(chunk.numel), chunk.master_only);
        }
        if (frozen == ~std::uint64_t{0}) frozen = sum;
        EXPECT_EQ(sum, frozen);
      }
    }
  }
}

// A unit of fewer blocks than ranks: each block has one owner, and what is left over goes round.
TEST(CompileSizes, FewerBlocksThanRanksAreSpread) {
  const ModelShape model = odd_model({{1}, {1}, {1}, {1}, {1}});
  const std::vector<Chunk> chunks = cut_chunks(model, 4096, 5);
  ASSERT_EQ(chunks.size(), 5u);
  const RankTable table({Stage::parameters, 5, 1}, chunks, model.units.size());
  std::vector<int> owned(5, 0);
  for (std::uint32_t c = 0; c < 5; ++c) ++owned[table.owner(c)];
  EXPECT_EQ(owned, std::vector<int>(5, 1));
}

}  // namespace
}  // namespace terrace
