// The whole path of an update (fold, block sums, verdict, schedule, groups, segments) against double
// precision.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "src/optimizer/chunk_update.h"
#include "src/optimizer/exact_sum.h"
#include "src/optimizer/schedule.h"
#include "src/optimizer/verdict.h"

namespace terrace {
namespace {

constexpr std::uint64_t kNumel = kBlockNumel + 500;  // two blocks, the second short
constexpr std::uint64_t kSteps = 1000;

struct Tensor {
  std::uint64_t offset;
  std::uint64_t numel;
  std::uint32_t group;
  std::uint64_t every;  // touched at steps that are multiples of this
};
// With padding between the second and the third.
constexpr Tensor kTensors[] = {{0, 1000, 0, 1}, {1000, 64, 1, 1}, {1100, 3000, 0, 3}, {4100, 496, 1, 7}};

// Everything in double precision, straight from the papers.
struct Reference {
  std::vector<double> p, m, v;
  double norm = 0;

  void step(const std::vector<double>& gradient, const std::vector<AdamWHyper>& groups, double clip_norm,
            std::uint64_t t) {
    double squares = 0;
    for (const double g : gradient) squares += g * g;
    norm = std::sqrt(squares);
    const double scale = std::min(1.0, clip_norm / (norm + 1e-6));
    for (const Tensor& tensor : kTensors) {
      if (t % tensor.every != 0) continue;
      const AdamWHyper& h = groups[tensor.group];
      const double count = static_cast<double>(t / tensor.every + 1);
      for (std::uint64_t i = tensor.offset; i < tensor.offset + tensor.numel; ++i) {
        const double g = gradient[i] * scale;
        p[i] *= 1 - h.lr * h.weight_decay;
        m[i] = h.beta1 * m[i] + (1 - h.beta1) * g;
        v[i] = h.beta2 * v[i] + (1 - h.beta2) * g * g;
        const double m_hat = m[i] / (1 - std::pow(h.beta1, count));
        const double v_hat = v[i] / (1 - std::pow(h.beta2, count));
        p[i] -= h.lr * m_hat / (std::sqrt(v_hat) + h.eps);
      }
    }
  }
};

TEST(AdamWReference, ThousandStepsOfChangingRateWithGroupsClippingAndRests) {
  std::mt19937 random(21);
  std::normal_distribution<float> normal;
  std::vector<float> p(kNumel), m(kNumel), v(kNumel), accumulator(kNumel), parameter(kNumel);
  Reference exact{std::vector<double>(kNumel), std::vector<double>(kNumel), std::vector<double>(kNumel)};
  for (const Tensor& tensor : kTensors) {
    for (std::uint64_t i = tensor.offset; i < tensor.offset + tensor.numel; ++i)
      exact.p[i] = p[i] = normal(random);
  }
  const LearningRateSchedule schedule{
      .kind = ScheduleKind::cosine, .lr = 2e-3, .warmup_steps = 50, .total_steps = kSteps, .min_ratio = 0.1};
  std::vector<double> sums(div_up(kNumel, kBlockNumel));
  bool clipped = false;
  bool free = false;
  for (std::uint64_t t = 0; t < kSteps; ++t) {
    std::vector<ChunkSegment> segments;
    std::vector<float> gradient(kNumel, 0.0f);
    for (const Tensor& tensor : kTensors) {
      const bool touched = t % tensor.every == 0;
      segments.push_back({tensor.offset, tensor.numel, tensor.group, t / tensor.every + 1, touched});
      if (!touched) continue;
      for (std::uint64_t i = tensor.offset; i < tensor.offset + tensor.numel; ++i) {
        gradient[i] = 0.02f * normal(random) * std::exp2(static_cast<float>(i % 7) - 3.0f);
      }
    }
    const std::vector<AdamWHyper> groups{
        {.lr = schedule.at(t), .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1},
        {.lr = schedule.at(t), .beta1 = 0.8, .beta2 = 0.999, .eps = 1e-6, .weight_decay = 0.0}};
    const double clip_norm = t % 2 == 0 ? 1.0 : 100.0;
    ASSERT_TRUE(fold_chunk({gradient.data(), DType::f32}, accumulator.data(), kNumel, {true, true}, sums));
    ExactSum total;
    for (const double sum : sums) total.add(sum);
    const Verdict verdict = make_verdict(total, clip_norm);
    update_chunk({p.data(), m.data(), v.data()}, {p.data(), m.data(), v.data()},
                 {accumulator.data(), DType::f32}, {parameter.data(), DType::f32}, kNumel, segments, groups,
                 verdict.grad_scale);
    exact.step({gradient.begin(), gradient.end()}, groups, clip_norm, t);
    ASSERT_NEAR(verdict.norm, exact.norm, 1e-13 * exact.norm);
    clipped = clipped || verdict.clip_factor < 1.0f;
    free = free || verdict.clip_factor == 1.0f;
  }
  EXPECT_TRUE(clipped && free);
  for (std::uint64_t i = 0; i < kNumel; ++i) {
    EXPECT_NEAR(p[i], exact.p[i], 4e-6 * (1.0 + std::abs(exact.p[i]))) << i;
    EXPECT_NEAR(m[i], exact.m[i], 1e-6 * std::sqrt(exact.v[i])) << i;
    EXPECT_NEAR(v[i], exact.v[i], 5e-6 * exact.v[i]) << i;
    EXPECT_EQ(parameter[i], p[i]);
  }
}

}  // namespace
}  // namespace terrace
