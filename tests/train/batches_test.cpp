// A step's samples in the executors of its ranks.
#include "src/train/batches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "src/data/token_file.h"
#include "terrace/error.h"
#include "tests/model/model_runner.h"
#include "tests/support/temp_dir.h"

namespace terrace::testing {
namespace {

constexpr std::uint32_t kVocabulary = 11;
constexpr std::uint32_t kContext = 4;
constexpr std::uint32_t kPadding = 10;

ModelSpec small_spec() {
  ModelSpec spec;
  spec.layers = 1;
  spec.width = 16;
  spec.heads = 2;
  spec.vocabulary = kVocabulary;
  spec.context = kContext;
  return spec;
}

class BatchesTest : public ::testing::Test {
 protected:
  TokenFile file_of(const std::vector<std::uint32_t>& tokens) {
    TokenFileWriter writer(folder_.file("t"), 1, kVocabulary);
    writer.append(tokens);
    writer.finish();
    return TokenFile(folder_.file("t"));
  }

  // Some of them padding: 10 of them after 7, and each in between with a rule of its own.
  TokenFile padded_file() {
    std::vector<std::uint32_t> tokens;
    for (std::uint32_t i = 0; i < 60; ++i) tokens.push_back(i % 7 == 3 || i > 50 ? kPadding : i * i % 10);
    return file_of(tokens);
  }

  static SamplerOptions options(std::uint64_t samples, std::uint64_t contributions) {
    SamplerOptions options{kContext, samples, contributions, 3};
    options.stride = 1;
    options.last_batch = LastBatch::short_of_full;
    options.ignore_token = kPadding;
    return options;
  }

  // Counted from the file, window by window.
  static std::uint64_t real_targets(const TokenFile& file, const DistributedSampler& sampler) {
    std::uint64_t real = 0;
    for (std::uint64_t i = 0; i < sampler.samples_of_step(); ++i) {
      const std::uint64_t start = sampler.window_at(sampler.position() + i);
      for (std::uint64_t j = 1; j <= kContext; ++j) real += file[start + j] != kPadding ? 1 : 0;
    }
    return real;
  }

  TempDir folder_;
};

TEST_F(BatchesTest, RanksHoldTogetherWhatOneHolds) {
  const TokenFile file = padded_file();
  for (const std::uint64_t samples : {1u, 2u, 6u, 7u}) {
    for (const std::uint32_t contributions : {1u, 2u, 3u, 5u}) {
      DistributedSampler sampler(file, options(samples, contributions));
      for (int step = 0; step < 3; ++step, sampler.advance()) {
        ModelRunner alone(small_spec(), 7, DType::f32, DType::f32);
        const std::uint64_t targets = load_step(sampler, alone.executor());
        ASSERT_EQ(targets, real_targets(file, sampler));
        std::vector<double> want;
        for (std::uint32_t k = 0; k < contributions; ++k) want.push_back(alone.train(false, k));

        for (const std::uint32_t ranks : {1u, 2u, 3u, 4u}) {
          std::vector<double> sums(contributions, -1);
          std::uint64_t counted = 0;
          for (std::uint32_t rank = 0; rank < ranks; ++rank) {
            ModelRunner runner(small_spec(), 7, DType::f32, DType::f32);
            counted += load_step(sampler, runner.executor(), rank, ranks);
            runner.executor().set_divisor(targets);
            for (std::uint32_t k = rank; k < contributions; k += ranks) sums[k] = runner.train(false, k);
            EXPECT_THROW(runner.forward(0, contributions), Error);  // absent: nothing was set there
          }
          ASSERT_EQ(counted, targets) << ranks;
          ASSERT_EQ(sums, want) << ranks << " ranks, " << contributions << " contributions, " << samples;
          ASSERT_EQ(mean_loss(sums, targets), mean_loss(alone.executor(), contributions, targets));
        }
      }
    }
  }
}

// The mean counts real targets alone: that of windows without padding is what it would be by itself.
TEST_F(BatchesTest, PaddingWeighsNothing) {
  std::vector<std::uint32_t> tokens{1, 2, 3, 4, 5};
  const TokenFile bare = file_of(tokens);
  SamplerOptions one{.context = kContext, .samples_per_step = 1, .shuffle = false};
  one.ignore_token = kPadding;
  ModelRunner runner(small_spec(), 2, DType::f32, DType::f32);
  const DistributedSampler whole(bare, one);
  ASSERT_EQ(load_step(whole, runner.executor()), 4u);
  const double loss = mean_loss(std::vector{runner.train()}, 4);
  const auto grads = runner.grads(0);

  tokens.insert(tokens.end(), 4, kPadding);  // a second window of padding
  const TokenFile padded = file_of(tokens);
  SamplerOptions two = one;
  two.samples_per_step = 2;
  const DistributedSampler both(padded, two);
  ASSERT_EQ(load_step(both, runner.executor()), 4u);
  EXPECT_NEAR(mean_loss(std::vector{runner.train()}, 4), loss, 1e-12);
  for (std::size_t i = 0; i < grads.size(); ++i) EXPECT_NEAR(runner.grads(0)[i], grads[i], 1e-7);
}

TEST_F(BatchesTest, AStepWithoutTargetsSaysSo) {
  const TokenFile file = file_of(std::vector<std::uint32_t>(12, kPadding));
  const DistributedSampler sampler(file, options(3, 2));
  ModelRunner runner(small_spec(), 7, DType::f32, DType::f32);
  EXPECT_EQ(load_step(sampler, runner.executor()), 0u);
  EXPECT_THROW(runner.train(), Error);  // no divisor
  EXPECT_EQ(load_step(sampler, runner.executor(), 1, 2), 0u);
  EXPECT_TRUE(std::isnan(mean_loss(std::vector<double>{0, 0}, 0)));
  EXPECT_THROW(load_step(sampler, runner.executor(), 2, 2), Error);
}

TEST(Samples, AreThoseOfTheConfiguration) {
  Config config;
  config.train.micro_batch = 16;
  config.train.micro_batches = 2;
  config.model.context = 24;
  config.train.seed = 7;
  config.data.stride = 3;
  config.data.last_batch = "short";
  config.data.ignore_token = 5;
  const SamplerOptions train = train_samples(config);
  EXPECT_EQ(train.context, 24u);
  EXPECT_EQ(train.samples_per_step, 32u);
  EXPECT_EQ(train.contributions, 2u);
  EXPECT_EQ(train.seed, 7u);
  EXPECT_TRUE(train.shuffle);
  EXPECT_EQ(train.stride, 3u);
  EXPECT_EQ(train.last_batch, LastBatch::short_of_full);
  EXPECT_EQ(train.ignore_token, 5);

  const SamplerOptions validation = validation_samples(config);
  EXPECT_EQ(validation.context, 24u);
  EXPECT_EQ(validation.samples_per_step, 16u);
  EXPECT_EQ(validation.contributions, 1u);
  EXPECT_FALSE(validation.shuffle);
  EXPECT_EQ(validation.stride, 0u);
  EXPECT_EQ(validation.last_batch, LastBatch::straddle);
  EXPECT_EQ(validation.ignore_token, 5);
}

TEST(MeanLoss, FoldsInOrderAndDividesOnce) {
  const std::vector<double> sums{1e16, 1.0, -1e16, 1.0};  // another order gives another sum
  EXPECT_EQ(mean_loss(sums, 4), 0.25);
  EXPECT_EQ(mean_loss(std::vector{0.1, 0.2, 0.3}, 3), (0.1 + 0.2 + 0.3) / 3);
}

}  // namespace
}  // namespace terrace::testing
