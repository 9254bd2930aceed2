// The figures of `terrace demo uneven-mean` against PyTorch's, against gradients taken with each rank's own
// divisor, and against the update that training really makes.
#include "src/train/uneven_mean.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "src/train/batches.h"
#include "src/train/session.h"
#include "terrace/data.h"
#include "tests/support/error_of.h"
#include "tests/support/temp_dir.h"

namespace terrace {
namespace {

class UnevenMeanTest : public testing::Test {
 protected:
  UnevenMeanTest() : config_(load_config(TERRACE_SOURCE_DIR "/configs/kieu.toml")) {
    prepare_data({TERRACE_SOURCE_DIR "/configs/kieu.txt"}, folder_.path(),
                 {.validation_share = 0, .token_bytes = 0, .tokenizer = "chars"});
    config_.data.path = folder_.path();
    config_.store.path = "";
  }

  // Where a way's parameter stands: its unit, and its element of the flat parameter.
  static std::pair<std::size_t, std::uint64_t> place_of(const ModelShape& model, const SharedBatch& way) {
    for (std::size_t u = 0; u < model.units.size(); ++u) {
      std::uint64_t begin = 0;
      for (const TensorShape& tensor : model.units[u].tensors) {
        if (tensor.name == way.tensor) return {u, begin + way.element};
        begin += tensor.numel;
      }
    }
    ADD_FAILURE() << "no tensor " << way.tensor;
    return {};
  }

  void step(Session& session, const DistributedSampler& sampler, std::uint64_t number) const {
    ASSERT_GT(session.load_step(sampler), 0u);
    run(session, number, config_.optimizer.lr);
  }
  void run(Session& session, std::uint64_t number, double lr) const {
    StepInputs inputs;
    inputs.step = number;
    inputs.groups = groups_at(config_, lr);
    session.engine().run(ProgramKind::train, inputs);
    session.engine().drain();
  }

  static double master(Session& session, std::pair<std::size_t, std::uint64_t> place) {
    double value = std::nan("");
    session.engine().visit([&](std::uint32_t, const ChunkState& state) {
      const Chunk& chunk = session.plan().chunks[state.chunk];
      if (chunk.unit != place.first || place.second < chunk.begin) return;
      if (place.second < chunk.begin + chunk.numel) value = state.streams[0][place.second - chunk.begin];
    });
    return value;
  }

  TempDir folder_;
  Config config_;
};

TEST_F(UnevenMeanTest, TheExactFiguresAreThoseOfTheRun) {
  const UnevenMean demo = uneven_mean(config_);
  EXPECT_EQ(demo.step, 4u);
  EXPECT_EQ(demo.windows, 18u);
  ASSERT_EQ(demo.ways.size(), 3u);
  using Numbers = std::vector<std::uint64_t>;
  EXPECT_EQ(demo.ways[0].windows, (Numbers{9, 9}));
  EXPECT_EQ(demo.ways[1].windows, (Numbers{16, 2}));
  EXPECT_EQ(demo.ways[2].windows, (Numbers{9, 9}));
  EXPECT_EQ(demo.ways[0].targets, (Numbers{144, 144}));
  EXPECT_EQ(demo.ways[1].targets, (Numbers{256, 32}));
  EXPECT_EQ(demo.ways[2].targets, (Numbers{144, 36}));
  for (const std::size_t way : {0, 1}) {  // PyTorch's loss and gradient norm of step 4 (tests/cli)
    EXPECT_NEAR(demo.ways[way].loss.exact, 3.3791473336, 1e-5 * 3.38) << way;
    EXPECT_NEAR(demo.ways[way].norm.exact, 1.18474522, 1e-4 * 1.18) << way;
  }
  EXPECT_EQ(demo.ways[0].loss.ranks, demo.ways[0].loss.exact);
  EXPECT_LT(demo.ways[0].gradient_error, 1e-7);
  for (const std::size_t way : {1, 2}) {
    EXPECT_GT(demo.ways[way].gradient_error, 0.1) << way;
    EXPECT_GT(demo.ways[way].update_error, 0.1) << way;
    EXPECT_NE(demo.ways[way].loss.ranks, demo.ways[way].loss.exact) << way;
  }
}

TEST_F(UnevenMeanTest, TheMeanOfMeansIsWhatRanksWithDivisorsOfTheirOwnGive) {
  const SharedBatch way = uneven_mean(config_).ways[1];
  TokenFile tokens(folder_.path() + "/" + kTrainTokensName);
  DistributedSampler sampler(tokens, train_samples(config_));
  Session session(config_, {});
  for (std::uint64_t number = 1; number <= 3; ++number) {
    step(session, sampler, number);
    sampler.advance();
  }
  const auto place = place_of(session.model(), way);
  const double before = master(session, place);
  double gradient = 0, loss = 0;
  std::uint64_t begin = 0;
  for (const std::uint64_t windows : way.windows) {  // each rank by itself, its mean halved
    std::vector<std::uint32_t> inputs;
    std::vector<std::int32_t> targets;
    for (std::uint64_t i = begin; i < begin + windows; ++i) {
      const std::uint64_t at = sampler.window_at(sampler.position() + i);
      for (std::uint64_t j = 0; j < config_.model.context; ++j) {
        inputs.push_back(tokens[at + j]);
        targets.push_back(static_cast<std::int32_t>(tokens[at + j + 1]));
      }
    }
    begin += windows;
    session.executor().set_contribution(0, inputs, targets);
    session.executor().set_contribution(1, {}, {});
    session.executor().set_divisor(2 * targets.size());
    session.probe().watch(OpKind::backward, Role::grads, unit_bytes(session.model(), DType::f32));
    run(session, 4, 0);
    float value = 0;
    std::memcpy(&value, session.probe().take()[0][place.first].data() + place.second * sizeof(float), 4);
    gradient += value;
    loss += session.executor().loss_sum(0) / static_cast<double>(2 * targets.size());
  }
  EXPECT_EQ(begin, 18u);
  EXPECT_NEAR(way.gradient.ranks, gradient, 1e-6 * std::abs(gradient));
  EXPECT_NEAR(way.loss.ranks, loss, 1e-12);

  // What the real step adds to that parameter: from a session that has not seen the batch.
  Session real(config_, {});
  DistributedSampler again(tokens, train_samples(config_));
  for (std::uint64_t number = 1; number <= 4; ++number) {
    if (number == 4) {
      EXPECT_EQ(master(real, place), before);
    }
    step(real, again, number);
    again.advance();
  }
  EXPECT_NEAR(master(real, place) - before, way.update.exact, 1e-4 * std::abs(way.update.exact));
}

TEST_F(UnevenMeanTest, AnotherNumberOfContributionsIsRefused) {
  config_.train.micro_batches = 3;
  EXPECT_THAT(error_of([&] { uneven_mean(config_); }),
              testing::HasSubstr("train.micro_batches = 3: wanted one contribution for each of 2 ranks"));
}

}  // namespace
}  // namespace terrace
