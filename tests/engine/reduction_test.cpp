// Contributions added up in other orders than one by one: what is folded is the sums that the order says, and
// nothing else of a run changes.
#include <gtest/gtest.h>

#include "tests/engine/known_gradients.h"

namespace terrace::engine_test {
namespace {

struct Case {
  std::uint32_t ranks;
  const char* stage;
  std::uint32_t replicas;
  const char* reduce;
  const char* hybrid_reduce;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.ranks << " ranks, stage " << c.stage << ", " << c.replicas << " replicas, " << c.reduce
             << ", " << c.hybrid_reduce;
}

// The contributions in each sum that is made before the fold, in ascending order.
std::vector<std::vector<std::uint32_t>> sums_of(const Case& c, std::uint32_t contributions) {
  std::vector<std::vector<std::uint32_t>> sums;
  for (std::uint32_t k = 0; k < contributions; ++k) {
    const std::uint32_t at = c.reduce == std::string("last")                  ? k % c.ranks
                             : c.reduce == std::string("grouped")             ? k / c.ranks
                             : c.hybrid_reduce == std::string("hierarchical") ? k / (c.ranks / c.replicas)
                                                                              : k;
    if (sums.size() <= at) sums.resize(at + 1);
    sums[at].push_back(k);
  }
  return sums;
}

const KnownModel kModel{{{{"embedding", 9001}, {"bias", 7, false}},
                         {},
                         {{"one", 1}, {"prime", 12289}},
                         {{"norm", 64, false}, {"head", 4099}}},
                        {}};

// One rank whose contributions are those sums, made here in fp32.
KnownResult run_of_sums(Config config, const Case& c, std::uint64_t first, std::uint64_t last,
                        bool resume = false) {
  const auto sums = sums_of(c, config.train.micro_batches);
  KnownModel model = kModel;
  model.gradient = [sums](const std::string& tensor, std::uint64_t i, std::uint64_t step, std::uint32_t k) {
    float sum = gradient_value(tensor, i, step, sums[k][0]);
    for (std::size_t j = 1; j < sums[k].size(); ++j) sum += gradient_value(tensor, i, step, sums[k][j]);
    return sum;
  };
  config.train.micro_batches = static_cast<std::uint32_t>(sums.size());
  return run_known(config, model, first, last, resume);
}

class ReductionTest : public testing::TestWithParam<Case> {
 protected:
  Config on_ranks(Config config) const {
    config.ranks.count = GetParam().ranks;
    config.ranks.stage = GetParam().stage;
    config.ranks.replicas = GetParam().replicas;
    config.ranks.reduce = GetParam().reduce;
    config.ranks.hybrid_reduce = GetParam().hybrid_reduce;
    return config;
  }

  Stores stores_;
};

TEST_P(ReductionTest, FoldsTheSumsThatTheOrderSays) {
  for (const std::uint32_t contributions : {1u, 2u, 3u, 4u, 5u, 7u, 9u}) {
    for (const double clip_norm : {1.0, 0.0}) {
      Config config = known_config();
      config.train.micro_batches = contributions;
      config.optimizer.clip_norm = clip_norm;
      SCOPED_TRACE(testing::Message() << contributions << " contributions, clip " << clip_norm);
      const KnownResult wanted = run_of_sums(config, GetParam(), 1, 3);
      EXPECT_EQ(run_known(on_ranks(config), kModel, 1, 3), wanted) << "in memory";
      EXPECT_EQ(run_known(stores_.on_disk(on_ranks(config)), kModel, 1, 3), wanted) << "on disk";
      expect_near(wanted,
                  reference_run(config, kModel, 3,
                                [](const KnownModel::Tensor& tensor) -> Hyper {
                                  return {1, tensor.decay ? 0.25 : 0};
                                }),
                  "in double precision");
    }
  }
}

TEST_P(ReductionTest, AddsBitsThatOneByOneDoesNot) {
  Config config = known_config();
  config.train.micro_batches = 9;
  EXPECT_NE(run_known(on_ranks(config), kModel, 1, 2).hash, run_known(config, kModel, 1, 2).hash);
}

// A store knows nothing of it: two steps one way, one the other.
TEST_P(ReductionTest, GoesOnFromAStoreWrittenOneByOne) {
  Config config = known_config();
  config.train.micro_batches = 5;
  const Config disk = stores_.on_disk(config), other = stores_.on_disk(config);
  run_known(disk, kModel, 1, 2);
  const KnownResult rest = run_known(on_ranks(disk), kModel, 3, 3, true);
  run_known(other, kModel, 1, 2);
  EXPECT_EQ(rest, run_of_sums(other, GetParam(), 3, 3, true));
}

INSTANTIATE_TEST_SUITE_P(
    Orders, ReductionTest,
    testing::Values(Case{2, "0", 0, "last", "flat"}, Case{3, "no_shard", 0, "last", "flat"},
                    Case{4, "1", 0, "last", "flat"}, Case{2, "0", 0, "grouped", "flat"},
                    Case{3, "1", 0, "grouped", "flat"}, Case{2, "2", 0, "grouped", "flat"},
                    Case{3, "3", 0, "grouped", "flat"}, Case{4, "hybrid_shard", 2, "grouped", "flat"},
                    Case{4, "hybrid_shard", 2, "each", "hierarchical"},
                    Case{6, "hybrid_shard", 2, "each", "hierarchical"},
                    Case{6, "hybrid_shard", 3, "each", "hierarchical"},
                    Case{3, "hybrid_shard", 1, "each", "hierarchical"}));

}  // namespace
}  // namespace terrace::engine_test
