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

TEST(CompileSizes, AreLegalOnAnyNumberOfRanks) {
  static const TierShares kPlaces[] = {kAllDevice, kAllHost, kAllNvme, kThirds};
  std::size_t sample = 0;
  for (const ModelShape& model : odd_models()) {
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
          for (std::uint64_t& bytes : request.budget_bytes) bytes *= shape.ranks;
          SCOPED_TRACE(words(shape) + ", " + std::to_string(model.units.size()) + " units of " +
                       std::to_string(model.units[0].numel()) + ", sample " + std::to_string(sample));
          const std::vector<Plan> plans = make_plans(request);
          ASSERT_TRUE(plans[0].fits) << to_text(plans[0].ledger);
          expect_legal(request, plans);
          if (HasFailure()) return;
        }
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
