#include "kernels/cpu/adamw.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu/simd.h"
#include "terrace/error.h"
#include "tests/kernels/guarded_buffer.h"

namespace terrace {
namespace {

// AdamW in double precision, straight from the paper.
struct DoubleAdamW {
  double p = 0, m = 0, v = 0;
  void step(double g, const AdamWHyper& h, std::uint64_t t) {
    p *= 1 - h.lr * h.weight_decay;
    m = h.beta1 * m + (1 - h.beta1) * g;
    v = h.beta2 * v + (1 - h.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(h.beta1, static_cast<double>(t)));
    const double v_hat = v / (1 - std::pow(h.beta2, static_cast<double>(t)));
    p -= h.lr * m_hat / (std::sqrt(v_hat) + h.eps);
  }
};

// The header's formula in plain floats.
void plain_adamw(float& p, float& m, float& v, float gradient, float scale, const AdamWScalars& s) {
  const float g = gradient * scale;
  m = std::fma(s.beta1_complement, g, std::fma(-s.beta1_complement, m, m));
  v = std::min(std::numeric_limits<float>::max(), std::fma(s.beta2_complement, std::fma(g, g, -v), v));
  const float u = m / std::fma(std::sqrt(v), s.root_correction, s.eps);
  p = p - std::fma(s.step_size, u, s.decay * p);
}

template <typename G, typename P>
void check_length(std::size_t numel, std::size_t offset, bool in_place) {
  const AdamWScalars scalars = AdamWScalars::make({.lr = 3e-3, .weight_decay = 0.1}, 5);
  for (const SimdTarget target : supported_simd_targets()) {
    set_simd_target(target);
    std::mt19937 random(static_cast<std::uint32_t>(numel));
    std::normal_distribution<float> normal;
    // Each stream ends at a guard page; `offset` moves the start of each off its alignment.
    GuardedBuffer<float> state[3] = {GuardedBuffer<float>(numel + offset),
                                     GuardedBuffer<float>(numel + offset),
                                     GuardedBuffer<float>(numel + offset)};
    GuardedBuffer<float> other[3] = {GuardedBuffer<float>(numel + offset),
                                     GuardedBuffer<float>(numel + offset),
                                     GuardedBuffer<float>(numel + offset)};
    GuardedBuffer<G> gradient(numel + offset);
    GuardedBuffer<P> parameter(numel + offset);
    for (std::size_t i = 0; i < numel + offset; ++i) {
      state[0][i] = normal(random);
      state[1][i] = 0.1f * normal(random);
      state[2][i] = std::abs(0.01f * normal(random));
      gradient[i] = from_float<G>(normal(random));
      parameter[i] = from_float<P>(7.0f);
      for (auto& stream : other) stream[i] = 7.0f;
    }
    std::vector<float> want[3];
    for (int j = 0; j < 3; ++j) want[j].assign(state[j].data(), state[j].data() + numel + offset);
    const std::vector<float> before[3] = {want[0], want[1], want[2]};
    for (std::size_t i = offset; i < numel + offset; ++i) {
      plain_adamw(want[0][i], want[1][i], want[2][i], to_float(gradient[i]), 0.75f, scalars);
    }
    auto& result = in_place ? state : other;
    adamw({state[0].data() + offset, state[1].data() + offset, state[2].data() + offset},
          {result[0].data() + offset, result[1].data() + offset, result[2].data() + offset},
          gradient.data() + offset, dtype_of<G>(), parameter.data() + offset, dtype_of<P>(), numel, 0.75f,
          scalars);
    for (std::size_t i = 0; i < numel + offset; ++i) {
      for (int j = 0; j < 3; ++j) {
        const float expected = i >= offset ? want[j][i] : in_place ? before[j][i] : 7.0f;
        ASSERT_EQ(std::bit_cast<std::uint32_t>(result[j][i]), std::bit_cast<std::uint32_t>(expected))
            << simd_target_name(target) << " stream " << j << " element " << i << " of " << numel;
        if (!in_place) {
          ASSERT_EQ(state[j][i], before[j][i]);
        }
      }
      ASSERT_EQ(parameter[i], from_float<P>(i >= offset ? want[0][i] : 7.0f));
    }
  }
}

TEST(AdamW, EveryLengthOnEveryTargetIsTheFormulaBitForBit) {
  for (std::size_t numel = 0; numel <= 1100; numel += numel < 70 ? 1 : 29) {
    check_length<bf16, bf16>(numel, numel % 5, true);
    check_length<bf16, float>(numel, numel % 3, false);
    check_length<float, bf16>(numel, numel % 7, false);
    check_length<float, float>(numel, numel % 2, true);
    check_length<f16, f16>(numel, numel % 5, false);
    check_length<f16, float>(numel, numel % 3, true);
    check_length<f16, bf16>(numel, numel % 4, true);
    check_length<bf16, f16>(numel, numel % 4, true);
    check_length<float, f16>(numel, numel % 7, true);
  }
}

TEST(AdamW, AllLengthsTo1100AgreeBetweenTargets) {
  constexpr std::size_t kMax = 1100;
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  std::vector<float> start(3 * kMax);
  for (float& x : start) x = std::abs(normal(random));
  std::vector<bf16> gradient(kMax);
  for (bf16& g : gradient) g = to_bf16(normal(random));
  const AdamWScalars scalars = AdamWScalars::make({}, 1);
  for (std::size_t numel = 0; numel <= kMax; ++numel) {
    std::vector<float> first;
    std::vector<bf16> first_parameter;
    for (const SimdTarget target : supported_simd_targets()) {
      set_simd_target(target);
      std::vector<float> state = start;
      std::vector<bf16> parameter(kMax);
      float* const p = state.data();
      adamw({p, p + kMax, p + 2 * kMax}, {p, p + kMax, p + 2 * kMax}, gradient.data(), DType::bf16,
            parameter.data(), DType::bf16, numel, 1.0f, scalars);
      if (first.empty()) {
        first = state;
        first_parameter = parameter;
      }
      ASSERT_EQ(state, first) << simd_target_name(target) << " " << numel;
      ASSERT_EQ(parameter, first_parameter);
    }
  }
}

TEST(AdamW, FollowsDoublePrecisionOver1000StepsOfChangingLearningRate) {
  constexpr std::size_t kNumel = 333;
  std::mt19937 random(10);
  std::normal_distribution<float> normal;
  std::vector<float> p(kNumel), m(kNumel), v(kNumel), gradient(kNumel), parameter(kNumel);
  std::vector<DoubleAdamW> exact(kNumel);
  for (std::size_t i = 0; i < kNumel; ++i) exact[i].p = p[i] = normal(random);
  const float scale = 0.25f;
  double moved = 0;
  for (std::uint64_t t = 1; t <= 1000; ++t) {
    const AdamWHyper hyper{.lr = 1e-3 * (1.0 + std::sin(0.01 * static_cast<double>(t))),
                           .beta1 = 0.9,
                           .beta2 = 0.999,
                           .eps = 1e-8,
                           .weight_decay = 0.1};
    for (std::size_t i = 0; i < kNumel; ++i) {
      // Gradients of very different sizes and one that is always zero.
      gradient[i] = i == 7 ? 0.0f : normal(random) * std::exp2(static_cast<float>(i % 23) - 18.0f) + 0.01f;
      exact[i].step(static_cast<double>(gradient[i]) * scale, hyper, t);
    }
    adamw({p.data(), m.data(), v.data()}, {p.data(), m.data(), v.data()}, gradient.data(), DType::f32,
          parameter.data(), DType::f32, kNumel, scale, AdamWScalars::make(hyper, t));
  }
  for (std::size_t i = 0; i < kNumel; ++i) {
    EXPECT_NEAR(p[i], exact[i].p, 2e-6 * (1.0 + std::abs(exact[i].p))) << i;
    EXPECT_NEAR(m[i], exact[i].m, 1e-6 * std::abs(exact[i].m) + 1e-6 * std::sqrt(exact[i].v)) << i;
    EXPECT_NEAR(v[i], exact[i].v, 4e-6 * exact[i].v) << i;
    EXPECT_EQ(p[i], parameter[i]);
    moved += std::abs(exact[i].p);
  }
  EXPECT_GT(moved, 10.0);
}

TEST(AdamW, DecayIsDecoupled) {
  // With no gradient the moments stay zero and the parameter only decays: an L2 term would show in the
  // moments.
  float p = 2.0f, m = 0.0f, v = 0.0f, gradient = 0.0f, parameter = 0.0f;
  adamw({&p, &m, &v}, {&p, &m, &v}, &gradient, DType::f32, &parameter, DType::f32, 1, 1.0f,
        AdamWScalars::make({.lr = 0.5, .weight_decay = 0.25}, 1));
  EXPECT_EQ(p, 2.0f * (1 - 0.125f));
  EXPECT_EQ(m, 0.0f);
  EXPECT_EQ(v, 0.0f);
}

TEST(AdamW, AFiniteGradientLeavesTheMomentsFinite) {
  for (const SimdTarget target : supported_simd_targets()) {
    set_simd_target(target);
    float p = 1.0f, m = 0.0f, v = 0.0f, parameter = 0.0f;
    for (std::uint64_t t = 1; t <= 20; ++t) {
      const float gradient =
          (t % 2 == 0 ? -1.0f : 1.0f) * (t < 10 ? std::numeric_limits<float>::max() : 1.0f);
      adamw({&p, &m, &v}, {&p, &m, &v}, &gradient, DType::f32, &parameter, DType::f32, 1, 1.0f,
            AdamWScalars::make({}, t));
      ASSERT_TRUE(std::isfinite(p) && std::isfinite(m) && std::isfinite(v)) << t;
      ASSERT_GE(v, 0.0f);
    }
  }
}

TEST(AdamW, AMasterBeyondFp16GivesAnInfiniteParameterOnly) {
  for (const SimdTarget target : supported_simd_targets()) {
    set_simd_target(target);
    float p = 70000.0f, m = 0.0f, v = 0.0f;
    const f16 gradient = to_f16(0.0f);
    f16 parameter;
    adamw({&p, &m, &v}, {&p, &m, &v}, &gradient, DType::f16, &parameter, DType::f16, 1, 1.0f,
          AdamWScalars::make({}, 1));
    EXPECT_EQ(p, 70000.0f);
    EXPECT_EQ(parameter.bits, 0x7C00);
  }
}

TEST(AdamW, ScalarsOutOfRangeAreRefusedByName) {
  const auto message = [](const AdamWHyper& hyper, std::uint64_t step) -> std::string {
    try {
      AdamWScalars::make(hyper, step);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message({}, 1), "");
  EXPECT_NE(message({}, 0).find("step"), std::string::npos);
  EXPECT_NE(message({.lr = -1.0}, 1).find("lr"), std::string::npos);
  EXPECT_NE(message({.lr = std::nan("")}, 1).find("lr"), std::string::npos);
  EXPECT_NE(message({.beta1 = 1.0}, 1).find("beta1"), std::string::npos);
  EXPECT_NE(message({.beta2 = -0.1}, 1).find("beta2"), std::string::npos);
  EXPECT_NE(message({.eps = 0.0}, 1).find("eps"), std::string::npos);
  EXPECT_NE(message({.weight_decay = -0.1}, 1).find("weight_decay"), std::string::npos);
}

TEST(AdamW, BiasCorrectionIsThatOfTheStep) {
  for (const std::uint64_t step : {1ull, 2ull, 10ull, 999ull, 100000ull, 10000000000ull}) {
    const AdamWScalars scalars = AdamWScalars::make({.lr = 1.0, .beta1 = 0.9, .beta2 = 0.999}, step);
    const double n = static_cast<double>(step);
    EXPECT_NEAR(scalars.step_size, 1.0 / (1.0 - std::pow(0.9, n)), 1e-6 * scalars.step_size);
    EXPECT_NEAR(scalars.root_correction, 1.0 / std::sqrt(1.0 - std::pow(0.999, n)),
                1e-6 * scalars.root_correction);
  }
}

}  // namespace
}  // namespace terrace
