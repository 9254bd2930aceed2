// The whole model through the executor: against the reference, and the same bits over threads, SIMD targets
// and recomputation.
#include "src/model/gpt_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cpu/gradient.h"
#include "kernels/cpu/simd.h"
#include "src/base/parallel_for.h"
#include "src/base/units.h"
#include "terrace/error.h"
#include "tests/model/model_runner.h"
#include "tests/model/values.h"

namespace terrace::testing {
namespace {

ModelSpec small_spec(bool tied) {
  ModelSpec spec;
  spec.layers = 3;
  spec.width = 24;
  spec.heads = 3;
  spec.vocabulary = 39;
  spec.context = 7;
  spec.tied_head = tied;
  return spec;
}

struct Batch {
  std::vector<std::uint32_t> tokens;
  std::vector<std::int32_t> targets;
  std::uint64_t real = 0;
};

Batch random_batch(const ModelSpec& spec, std::uint32_t samples, std::uint64_t seed = 1) {
  Batch batch;
  for (std::size_t i = 0; i < std::size_t{samples} * spec.context; ++i) {
    batch.tokens.push_back(static_cast<std::uint32_t>(random_bits(seed, 1, i, 0) % spec.vocabulary));
    const bool ignored = random_bits(seed, 2, i, 0) % 5 == 0;
    batch.targets.push_back(
        ignored ? kIgnoreTarget : static_cast<std::int32_t>(random_bits(seed, 3, i, 0) % spec.vocabulary));
    batch.real += ignored ? 0 : 1;
  }
  return batch;
}

void set(ModelRunner& runner, const Batch& batch, std::uint64_t divisor) {
  runner.executor().set_contribution(0, batch.tokens, batch.targets);
  runner.executor().set_divisor(divisor);
}

// Random parameters, rounded to the compute dtype; what the reference starts from.
std::vector<Doubles> randomise(ModelRunner& runner, const ModelSpec& spec) {
  std::vector<Doubles> params = random_params(spec, 11);
  for (std::size_t u = 0; u < params.size(); ++u) {
    runner.set_params(u, std::vector<float>(params[u].begin(), params[u].end()));
    const Doubles stored = widened(runner.params(u));
    params[u].assign(stored.begin(), stored.begin() + static_cast<std::ptrdiff_t>(params[u].size()));
  }
  return params;
}

// Of the gradients: fp32 sums; the rounding of every activation and gradient on the way through three blocks,
// 2^-9 each in bf16, 2^-12 in fp16.
double tolerance(DType compute, DType grad) {
  return std::max(by_dtype(compute, 5e-5, 4e-2, 5e-3), by_dtype(grad, 5e-5, 4e-3, 5e-4));
}

void compare(bool tied, std::uint32_t samples, DType compute, DType grad, double loss_scale = 1) {
  const ModelSpec spec = small_spec(tied);
  ModelRunner runner(spec, 3, compute, grad);
  const std::vector<Doubles> params = randomise(runner, spec);
  const Batch batch = random_batch(spec, samples);
  set(runner, batch, batch.real + 10);
  runner.executor().set_loss_scale(loss_scale);
  const double loss = runner.train();
  const ReferenceResult want =
      train_reference(spec, params, batch.tokens, batch.targets, static_cast<double>(batch.real + 10));
  EXPECT_NEAR(loss, want.loss_sum, by_dtype(compute, 1e-5, 1e-2, 6e-4) * want.loss_sum);
  EXPECT_EQ(loss, runner.evaluate());
  for (std::size_t u = 0; u < params.size(); ++u) {
    Doubles got = widened(runner.grads(u));
    for (double& x : got) x /= loss_scale;
    const auto numel = static_cast<std::ptrdiff_t>(params[u].size());
    EXPECT_LT(error(Doubles(got.begin(), got.begin() + numel), want.grads[u]), tolerance(compute, grad))
        << "unit " << u << " tied " << tied << " samples " << samples << " in " << dtype_name(compute);
    for (auto i = numel; i < static_cast<std::ptrdiff_t>(got.size()); ++i) ASSERT_EQ(got[i], 0) << "padding";
  }
}

TEST(GptExecutor, MatchesReference) {
  for (const bool tied : {false, true}) {
    for (const std::uint32_t samples : {1u, 2u, 3u}) {
      compare(tied, samples, DType::f32, DType::f32);
      compare(tied, samples, DType::f32, DType::bf16);
      compare(tied, samples, DType::bf16, DType::bf16);
      compare(tied, samples, DType::bf16, DType::f32);
      compare(tied, samples, DType::f16, DType::f16, 256);
      compare(tied, samples, DType::f16, DType::f32, 256);
      compare(tied, samples, DType::f16, DType::bf16, 300);
      compare(tied, samples, DType::f32, DType::f16, 300);
      compare(tied, samples, DType::bf16, DType::f16, 256);
    }
  }
}

struct Result {
  double loss = 0;
  std::vector<Bytes> grads;
};

Result train_once(const ModelSpec& spec, std::uint32_t samples, DType compute, DType grad, bool recompute,
                  std::uint32_t max_samples) {
  ModelRunner runner(spec, max_samples, compute, grad);
  randomise(runner, spec);
  const Batch batch = random_batch(spec, samples, 3);
  set(runner, batch, batch.real);
  Result result;
  result.loss = runner.train(recompute);
  for (std::size_t u = 0; u < runner.shape().units.size(); ++u) result.grads.push_back(runner.grad_bytes(u));
  return result;
}

// Several tiles in every direction, rows past one pass of the head.
ModelSpec tiled_spec(bool tied) {
  ModelSpec spec;
  spec.layers = 1;
  spec.width = 48;
  spec.heads = 2;
  spec.mlp_width = 400;
  spec.vocabulary = 800;
  spec.context = 150;
  spec.tied_head = tied;
  return spec;
}

class SameBits : public ::testing::TestWithParam<DType> {
 protected:
  void expect_same(const Result& a, const Result& b, const std::string& what) {
    EXPECT_EQ(a.loss, b.loss) << what;
    for (std::size_t u = 0; u < a.grads.size(); ++u)
      EXPECT_TRUE(same_bits(a.grads[u], b.grads[u])) << what << u;
  }
  void TearDown() override {
    set_parallel_threads(0);
    set_simd_target(supported_simd_targets().back());
  }
};

TEST_P(SameBits, OverThreads) {
  for (const bool tied : {false, true}) {
    const ModelSpec spec = tiled_spec(tied);
    set_parallel_threads(1);
    const Result one = train_once(spec, 7, GetParam(), GetParam(), false, 7);
    for (const int threads : {2, 3}) {
      set_parallel_threads(threads);
      expect_same(one, train_once(spec, 7, GetParam(), GetParam(), false, 7), "threads");
    }
  }
}

TEST_P(SameBits, OverSimdTargets) {
  for (const ModelSpec& spec : {small_spec(true), small_spec(false), tiled_spec(true)}) {
    set_simd_target(SimdTarget::scalar);
    const Result scalar = train_once(spec, 2, GetParam(), GetParam(), false, 2);
    for (const SimdTarget target : supported_simd_targets()) {
      set_simd_target(target);
      expect_same(scalar, train_once(spec, 2, GetParam(), GetParam(), false, 2),
                  std::string(simd_target_name(target)));
    }
  }
}

TEST_P(SameBits, WithRecomputation) {
  const ModelSpec spec = small_spec(false);
  expect_same(train_once(spec, 3, GetParam(), GetParam(), false, 3),
              train_once(spec, 3, GetParam(), GetParam(), true, 3), "recompute");
}

TEST_P(SameBits, OverTheLargestContribution) {
  const ModelSpec spec = small_spec(true);
  expect_same(train_once(spec, 2, GetParam(), GetParam(), false, 2),
              train_once(spec, 2, GetParam(), GetParam(), false, 5), "max_samples");
}

INSTANTIATE_TEST_SUITE_P(Types, SameBits, ::testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

TEST(GptExecutor, SavedEqualsRecomputed) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const ModelSpec spec = small_spec(true);
    ModelRunner runner(spec, 2, dtype, dtype);
    const Batch batch = random_batch(spec, 2);
    set(runner, batch, 1);
    runner.evaluate();
    const Bytes saved = runner.saved_bytes(2);
    runner.run(OpKind::recompute, 2);
    EXPECT_TRUE(same_bits(saved, runner.saved_bytes(2))) << dtype_name(dtype);
  }
}

// A power of two passes through every product and sum as an exponent: the gradient is that of scale 1, times
// it, to the bit; and the loss is not scaled.
TEST(GptExecutor, APowerOfTwoLossScaleIsExactInFp32) {
  for (const bool tied : {false, true}) {
    const ModelSpec spec = small_spec(tied);
    ModelRunner runner(spec, 2, DType::f32, DType::f32);
    randomise(runner, spec);
    const Batch batch = random_batch(spec, 2);
    set(runner, batch, batch.real);
    const double loss = runner.train();
    std::vector<std::vector<float>> plain;
    for (std::size_t u = 0; u < runner.shape().units.size(); ++u) plain.push_back(runner.grads(u));
    for (const double scale : {0x1p16, 0x1p-3}) {
      runner.executor().set_loss_scale(scale);
      EXPECT_EQ(runner.train(), loss);
      for (std::size_t u = 0; u < plain.size(); ++u) {
        std::vector<float> want = plain[u];
        for (float& x : want) x *= static_cast<float>(scale);
        EXPECT_EQ(runner.grads(u), want) << u;
      }
    }
  }
}

bool all_finite(ModelRunner& runner, std::size_t unit, DType grad) {
  const std::vector<float> gradient = runner.grads(unit);
  std::vector<double> sums(div_up(gradient.size(), kBlockNumel));
  return gradient_stats(runner.grad_bytes(unit).data(), grad, gradient.size(), sums.data());
}

// Small gradients vanish in fp16 without a loss scale, and a scale that is too large overflows: the check of
// the gradient finds it, in whatever dtype it is kept.
TEST(GptExecutor, TheLossScaleMovesGradientsIntoTheRangeOfFp16) {
  const ModelSpec spec = small_spec(false);
  for (const DType grad : {DType::f16, DType::f32}) {
    ModelRunner runner(spec, 2, DType::f16, grad);
    const std::vector<Doubles> params = randomise(runner, spec);
    const Batch batch = random_batch(spec, 2);
    const std::uint64_t divisor = std::uint64_t{1} << 24;  // as many targets as a large global batch has
    set(runner, batch, divisor);
    const ReferenceResult want =
        train_reference(spec, params, batch.tokens, batch.targets, static_cast<double>(divisor));
    const auto distance = [&](std::size_t unit, double scale) {
      Doubles got = widened(runner.grads(unit));
      got.resize(want.grads[unit].size());
      for (double& x : got) x /= scale;
      return error(got, want.grads[unit]);
    };
    runner.train();
    EXPECT_GT(distance(2, 1), 0.5) << "subnormal and lost";
    runner.executor().set_loss_scale(0x1p30);
    runner.train();
    for (std::size_t u = 0; u < params.size(); ++u) {
      EXPECT_TRUE(all_finite(runner, u, grad));
      EXPECT_LT(distance(u, 0x1p30), tolerance(DType::f16, grad)) << u;
    }
    runner.executor().set_loss_scale(0x1p44);
    const double loss = runner.train();
    EXPECT_NEAR(loss, want.loss_sum, 1e-3 * want.loss_sum) << "the loss is not scaled";
    for (std::size_t u = 0; u < params.size(); ++u) EXPECT_FALSE(all_finite(runner, u, grad)) << u;
  }
}

// An activation beyond fp16 is not hidden by what follows it.
TEST(GptExecutor, AnActivationThatOverflowsReachesTheGradient) {
  const ModelSpec spec = small_spec(true);
  for (std::size_t unit = 0; unit + 1 < spec.unit_count(); ++unit) {
    ModelRunner runner(spec, 2, DType::f16, DType::f16);
    std::vector<Doubles> params = randomise(runner, spec);
    std::vector<float> large(params[unit].begin(), params[unit].end());
    // A block's are finite in fp16, its activations are not; the embedding overflows itself (a norm follows
    // it, which would make any finite factor good).
    for (float& x : large) x *= unit == 0 ? 1e6f : 1e4f;
    runner.set_params(unit, large);
    const Batch batch = random_batch(spec, 2);
    set(runner, batch, batch.real);
    const double loss = runner.train();
    EXPECT_FALSE(std::isfinite(loss)) << unit;
    bool finite = true;
    for (std::size_t u = 0; u < params.size(); ++u) finite = all_finite(runner, u, DType::f16) && finite;
    EXPECT_FALSE(finite) << unit;
  }
}

TEST(GptExecutor, EmptyContributionGivesZeros) {
  for (const bool tied : {false, true}) {
    const ModelSpec spec = small_spec(tied);
    const DType dtype = tied ? DType::bf16 : DType::f16;
    ModelRunner runner(spec, 2, dtype, dtype);
    set(runner, {}, 5);
    EXPECT_EQ(0, runner.train());
    for (std::size_t u = 0; u < runner.shape().units.size(); ++u) {
      EXPECT_THAT(runner.grads(u), ::testing::Each(0.0f)) << u;
    }
  }
}

TEST(GptExecutor, SeveralContributions) {
  const ModelSpec spec = small_spec(true);
  ModelRunner runner(spec, 2, DType::f32, DType::f32);
  const Batch a = random_batch(spec, 2, 5);
  const Batch b = random_batch(spec, 1, 6);
  runner.executor().set_contribution(0, a.tokens, a.targets);
  runner.executor().set_contribution(1, b.tokens, b.targets);
  runner.executor().set_divisor(a.real + b.real);
  const double loss_a = runner.train(false, 0);
  const double loss_b = runner.train(false, 1);
  EXPECT_NE(loss_a, loss_b);
  EXPECT_EQ(loss_a, runner.executor().loss_sum(0));
  EXPECT_EQ(loss_b, runner.evaluate(1));
}

TEST(GptExecutor, WatchesLogits) {
  for (const bool tied : {false, true}) {
    const ModelSpec spec = small_spec(tied);
    ModelRunner runner(spec, 2, DType::f32, DType::f32);
    randomise(runner, spec);
    const Batch batch = random_batch(spec, 2);
    set(runner, batch, 1);
    for (const std::int64_t row : {0, 6, 13}) {
      runner.executor().watch_row(row);
      runner.evaluate();
      const std::vector<float>& logits = runner.executor().watched_logits();
      ASSERT_EQ(logits.size(), spec.vocabulary);
      // The loss of that row alone, from its logits.
      Batch alone = batch;
      for (std::size_t i = 0; i < alone.targets.size(); ++i) {
        alone.targets[i] = i == static_cast<std::size_t>(row) ? 4 : kIgnoreTarget;
      }
      set(runner, alone, 1);
      EXPECT_NEAR(runner.evaluate(), cross_entropy(widened(logits), {4}, spec.vocabulary, 1, nullptr), 1e-5);
    }
    runner.executor().watch_row(14);
    EXPECT_THROW(runner.evaluate(), Error);
    runner.executor().watch_row(-1);
    runner.evaluate();
    EXPECT_TRUE(runner.executor().watched_logits().empty());
  }
}

TEST(GptExecutor, HoldsWhatItSays) {
  const ModelSpec spec = small_spec(true);
  ModelRunner runner(spec, 2, DType::bf16, DType::bf16);
  const auto threads = static_cast<std::size_t>(parallel_threads());
  EXPECT_GE(runner.executor().library_bytes(), threads * kTileBytes);
  const Batch batch = random_batch(spec, 2);
  set(runner, batch, 1);
  set_parallel_threads(1);  // the same worker each time
  runner.train();
  runner.evaluate();
  const std::size_t held = runner.executor().library_bytes();
  runner.train(true);
  EXPECT_EQ(runner.executor().library_bytes(), held) << "nothing grows from step to step";
  set_parallel_threads(0);
}

TEST(GptExecutor, RefusesBadInput) {
  const ModelSpec spec = small_spec(true);
  GptExecutor executor(spec, 2, DType::bf16, DType::bf16);
  const std::vector<std::uint32_t> tokens(7, 1);
  const std::vector<std::int32_t> targets(7, 1);
  const auto message = [&](const std::vector<std::uint32_t>& x,
                           const std::vector<std::int32_t>& y) -> std::string {
    try {
      executor.set_contribution(4, x, y);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message(tokens, targets), "");
  EXPECT_THAT(message(std::vector<std::uint32_t>(6, 1), std::vector<std::int32_t>(6, 1)),
              ::testing::HasSubstr("contribution 4: wanted whole samples of 7 tokens, at most 14"));
  EXPECT_NE(message(std::vector<std::uint32_t>(21, 1), std::vector<std::int32_t>(21, 1)), "");
  EXPECT_NE(message(tokens, std::vector<std::int32_t>(14, 1)), "");
  auto high = tokens;
  high[3] = 39;
  EXPECT_THAT(message(high, targets), ::testing::HasSubstr("place 3: token 39"));
  auto high_target = targets;
  high_target[6] = 39;
  EXPECT_THAT(message(tokens, high_target), ::testing::HasSubstr("place 6"));
  EXPECT_THROW(executor.loss_sum(4), Error);
  EXPECT_THROW(executor.loss_sum(0), Error);
  EXPECT_THROW(executor.run({OpKind::forward, 0, 9, {}}), Error);
  EXPECT_THROW(executor.run({OpKind::forward, 0, 4, {}}), Error) << "no operands";
  for (const double bad : {0.0, -1.0, HUGE_VAL, std::nan("")})
    EXPECT_THROW(executor.set_loss_scale(bad), Error);
  EXPECT_THROW(GptExecutor(spec, 0, DType::bf16, DType::bf16), Error);
}

}  // namespace
}  // namespace terrace::testing
