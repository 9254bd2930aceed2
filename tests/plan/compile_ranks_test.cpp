// Programs of several ranks through the checker, which shares no code with the compiler.
#include <gtest/gtest.h>

#include "tests/plan/ranked_plans.h"

namespace terrace {
namespace {

using namespace testing_models;

constexpr UpdateTime kUpdateTimes[] = {UpdateTime::next_forward, UpdateTime::backward};
constexpr std::size_t kSamples = 15;

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
  if (sample % 7 == 3) request.cut_ranks = 1;  // units of fewer chunks than ranks
  if (sample % 13 == 5) {
    request.has_store = false;
    if (request.optimizer_state != kAllDevice) request.optimizer_state = kAllHost;
  }
  return request;
}

// The product of meshes, contributions and update times, each with other placements of all that there are.
TEST(CompileRanks, EveryPlacementIsLegalWithRoomAndWithTheLeast) {
  std::size_t plans = 0;
  for (const RankShape& shape : mesh_shapes()) {
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
  EXPECT_EQ(plans, 20u * 4 * 2 * kSamples);
}

}  // namespace
}  // namespace terrace
