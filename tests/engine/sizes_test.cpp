// Tensors of any size on any number of ranks: prime, of one element, empty, units without parameters, and
// fewer blocks than ranks.
#include <gtest/gtest.h>

#include "tests/engine/known_gradients.h"

namespace terrace::engine_test {
namespace {

constexpr Mesh kMeshes[] = {{2, "0"}, {2, "3"}, {3, "1"}, {3, "3"}, {4, "2"}, {4, "hybrid_shard", 2},
                            {5, "0"}, {5, "1"}, {5, "3"}};

struct Case {
  const char* name;
  std::vector<std::vector<KnownModel::Tensor>> units;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.name;
}

std::vector<Case> cases() {
  const KnownModel::Tensor one{"one", 1}, empty{"empty", 0}, prime{"prime", 4099}, small{"small", 7, false};
  return {
      {"OneElement", {{one}, {{"other", 1}}}},
      {"Primes", {{prime, {"p2", 8191}}, {{"p3", 12289}}, {{"p4", 4093}, {"p5", 3}}}},
      {"EmptyTensors", {{empty, small, {"empty2", 0}}, {{"empty3", 0}, prime}, {{"w", 4096}, {"empty4", 0}}}},
      {"UnitsWithoutParameters", {{}, {prime}, {}, {{"empty3", 0}}, {small}, {}}},
      {"OnlyTheLastHasParameters", {{}, {}, {small}}},
      {"WholeBlocks", {{{"a", 4096}}, {{"b", 8192}, {"c", 4096}}, {{"d", 4095}, {"e", 1}}}},
      {"ManyInABlock", {{one, small, {"x", 2}, {"y", 3}, {"z", 5}}, {{"v", 11}, {"u", 4097}, {"t", 1}}}},
  };
}

class Sizes : public testing::TestWithParam<Case> {
 protected:
  Stores stores_;
};

TEST_P(Sizes, GiveTheSameBitsOnAnyNumberOfRanks) {
  const KnownModel model{GetParam().units, {}};
  for (const double clip_norm : {1.0, 0.0}) {
    Config config = known_config();
    config.optimizer.clip_norm = clip_norm;
    const KnownResult one = run_known(config, model, 1, 3);
    expect_near(one,
                reference_run(config, model, 3,
                              [](const KnownModel::Tensor& tensor) -> Hyper {
                                return {1, tensor.decay ? 0.25 : 0};
                              }),
                "one rank");
    for (const Mesh& mesh : kMeshes) {
      const std::string what = std::to_string(mesh.ranks) + " ranks, stage " + mesh.stage;
      for (const std::uint64_t chunk_numel : {4096u, 65536u}) {
        config.placement.chunk_numel = chunk_numel;
        EXPECT_EQ(run_known(on(config, mesh), model, 1, 3), one) << what << ", chunks of " << chunk_numel;
      }
    }
  }
}

TEST_P(Sizes, GoThroughTheStoreAtAnyNumberOfRanks) {
  const KnownModel model{GetParam().units, {}};
  const KnownResult one = run_known(known_config(), model, 1, 3);
  std::size_t next = 0;
  for (const Mesh& mesh : kMeshes) {
    const Config config = stores_.on_disk(known_config());
    run_known(on(config, mesh), model, 1, 2);
    const Mesh& other = kMeshes[(next++ + 4) % std::size(kMeshes)];
    const KnownResult rest = run_known(on(config, other), model, 3, 3, true);
    EXPECT_EQ(rest.tensors, one.tensors) << mesh.ranks << " ranks, then " << other.ranks;
    EXPECT_EQ(rest.hash, one.hash);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Sizes, testing::ValuesIn(cases()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace terrace::engine_test
