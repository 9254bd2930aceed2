// Every tensor is updated with exactly the hyperparameters of its group, however it is cut.
#include <gtest/gtest.h>

#include "tests/engine/known_gradients.h"

namespace terrace::engine_test {
namespace {

const KnownModel kModel{{{{"in.weight", 5003}, {"in.bias", 97, false}},
                         {{"mid.a.weight", 9001}, {"mid.a.bias", 1, false}, {"mid.b.weight", 1021}},
                         {{"out.weight", 12289}, {"out.bias", 3, false}}},
                        {}};

Hyper hyper_of(const KnownModel::Tensor& tensor) {
  if (tensor.name.starts_with("mid.a.")) return {0.5, tensor.decay ? 0.25 : 0};
  if (tensor.name == "out.weight") return {3, 0.75};
  if (tensor.name == "mid.b.weight") return {0, 0.25};
  if (tensor.name == "out.bias") return {1, 2};
  return {1, tensor.decay ? 0.25 : 0};
}

Config with_groups() {
  Config config = known_config();
  config.optimizer.groups = {{"mid.a.*", 0.5, {}, false},
                             {"out.weight", 3, 0.75, false},
                             {"mid.?.weight", 0, {}, false},
                             {"out.*", 1, 2.0, false}};
  return config;
}

TEST(EngineParameterGroups, EachTensorIsUpdatedAsADoublePrecisionAdamWDoes) {
  for (const double clip_norm : {1.0, 0.0}) {
    Config config = with_groups();
    config.optimizer.clip_norm = clip_norm;
    std::vector<double> norms;
    const auto exact = reference_run(config, kModel, 4, hyper_of, &norms);
    std::string first;
    for (const std::uint32_t ranks : {1u, 3u}) {
      for (const std::uint64_t chunk_numel : {4096u, 8192u, 65536u}) {
        config.ranks.count = ranks;
        config.placement.chunk_numel = chunk_numel;
        const KnownResult result = run_known(config, kModel, 1, 4);
        const std::string what = std::to_string(ranks) + " ranks, chunks of " + std::to_string(chunk_numel);
        expect_near(result, exact, what);
        for (std::size_t s = 0; s < norms.size(); ++s)
          EXPECT_NEAR(result.norms[s], norms[s], 1e-6 * norms[s]);
        if (first.empty()) first = result.hash;
        EXPECT_EQ(result.hash, first) << what;
      }
    }
  }
}

// A rate of nothing moves nothing, though states are kept.
TEST(EngineParameterGroups, ARatioOfNothingLeavesTheMaster) {
  const KnownResult result = run_known(with_groups(), kModel, 1, 2);
  const TensorState<float>& still = result.tensors.at("mid.b.weight");
  for (std::size_t i = 0; i < still.master.size(); ++i)
    ASSERT_EQ(still.master[i], initial_value("mid.b.weight", i));
  EXPECT_EQ(still.steps, 2u);
  EXPECT_NE(still.exp_avg_sq[0], 0.0f);
}

}  // namespace
}  // namespace terrace::engine_test
