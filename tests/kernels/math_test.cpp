// exp, tanh, log and the lane operations: against double precision, and bit for bit between the targets.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/math_test.cpp"
#include "kernels/cpu/simd_targets.h"
// After simd_targets.h:
#include <hwy/foreach_target.h>

#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::HWY_NAMESPACE {

void exp_lanes(const float* in, float* out) {
  store(out, exp(load(in)));
}
void tanh_lanes(const float* in, float* out) {
  store(out, tanh(load(in)));
}
void log_lanes(const float* in, float* out) {
  store(out, log(load(in)));
}

// out[0..3] = sum, maximum, "all finite", sum of the promoted squares, over n elements by the reduction rule.
void reduce(const float* in, std::size_t n, float* out) {
  F32 sum = set(0.0f);
  F32 largest = set(-INFINITY);
  F64 squares = set64(0.0);
  bool finite = true;
  for (std::size_t i = 0; i < n; i += kLanes) {
    const std::size_t count = n - i < kLanes ? n - i : kLanes;
    const F32 x = load_n(in + i, count, 0.0f);
    sum = sum + x;
    largest = max(largest, load_n(in + i, count, -INFINITY));
    finite = finite && all_true(is_finite(x));
    squares = fma(promote(x), promote(x), squares);
  }
  out[0] = sum_lanes(sum);
  out[1] = max_lanes(largest);
  out[2] = finite ? 1.0f : 0.0f;
  out[3] = static_cast<float>(sum_lanes(squares));
}

// Every remaining operation once, so that a lane out of place or a wrong operand shows. 16 in each, 16 * 16
// out.
void mixture(const float* a, const float* b, float* out) {
  const F32 x = load(a);
  const F32 y = load(b);
  store(out, x + y);
  store(out += 16, x - y);
  store(out += 16, x * y);
  store(out += 16, x / y);
  store(out += 16, fma(x, y, x));
  store(out += 16, max(x, y));
  store(out += 16, min(x, y));
  store(out += 16, sqrt(abs(x)));
  store(out += 16, select(x < y, x, y));
  store(out += 16, select((x <= y) | (x == y), y, x));
  store(out += 16, select((x <= y) & is_finite(x), y, x));
  store(out += 16, signed_to_float(shift_right_signed<20>(bits(x) ^ bits(y))));
  store(out += 16, signed_to_float(shift_right<9>(bits(x) + bits(y)) | shift_left<3>(set_bits(5))));
  store(out += 16, round_to<bf16>(x));
  store(out += 16, round_to<f16>(x));
  alignas(64) double wide[16];
  store(wide, fma(promote(x), promote(y), set64(1.0)) / (promote(x) * promote(x) + set64(2.0)) - set64(0.5));
  out += 16;
  for (int i = 0; i < 16; ++i) out[i] = static_cast<float>(wide[i]);
}

}  // namespace terrace::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu/simd.h"

namespace terrace {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

// Distance in units in the last place of `want`; infinite when one is special and the other not.
double ulps(float got, double want) {
  if (std::isnan(want)) return std::isnan(got) ? 0 : kInf;
  const float rounded = static_cast<float>(want);
  if (std::isinf(rounded) || std::isinf(got)) return rounded == got ? 0 : kInf;
  const float magnitude = std::abs(rounded);
  const double unit = static_cast<double>(std::nextafter(magnitude, kInf)) - magnitude;
  return std::abs(got - want) / unit;
}

using Lanes = void (*)(const float*, float*);
using Reference = double (*)(double);

// Every 2^32 / 1,200,000th bit pattern and what lies around the special points.
std::vector<float> samples() {
  std::vector<float> values;
  for (std::uint64_t pattern = 0; pattern < (std::uint64_t{1} << 32); pattern += 3571) {
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(pattern)));
  }
  for (const float point :
       {0.0f, 1.0f, 0.5f, 1.41421356f, 0.70710678f, 88.72284f, 87.33655f, 103.97208f, 9.01f, 9.25f,
        0.34657359f, 0.625f, 1.17549435e-38f, 1e-45f, 3.4028235e38f, kInf}) {
    for (const float sign : {1.0f, -1.0f}) {
      float below = sign * point;
      float above = sign * point;
      for (int i = 0; i < 40; ++i) {
        values.push_back(below);
        values.push_back(above);
        below = std::nextafter(below, -kInf);
        above = std::nextafter(above, kInf);
      }
    }
  }
  values.push_back(std::numeric_limits<float>::quiet_NaN());
  while (values.size() % 16 != 0) values.push_back(0.25f);
  return values;
}

void check_function(Lanes (*function)(), Reference reference, double allowed_ulps) {
  const std::vector<float> in = samples();
  std::vector<float> first(in.size());
  for (const SimdTarget target : supported_simd_targets()) {
    set_simd_target(target);
    std::vector<float> out(in.size());
    for (std::size_t i = 0; i < in.size(); i += 16) function()(&in[i], &out[i]);
    if (target == SimdTarget::scalar) {
      first = out;
      for (std::size_t i = 0; i < in.size(); ++i) {
        ASSERT_LE(ulps(out[i], reference(in[i])), allowed_ulps) << "at " << in[i] << ": " << out[i];
      }
    }
    for (std::size_t i = 0; i < in.size(); ++i) {
      ASSERT_TRUE(same(out[i], first[i])) << simd_target_name(target) << " at " << in[i];
    }
  }
}

TEST(Math, Exp) {
  check_function([]() -> Lanes { return TERRACE_DISPATCH(exp_lanes); }, [](double x) { return std::exp(x); },
                 1.5);
}
TEST(Math, Tanh) {
  check_function([]() -> Lanes { return TERRACE_DISPATCH(tanh_lanes); },
                 [](double x) { return std::tanh(x); }, 3.0);
}
TEST(Math, Log) {
  check_function([]() -> Lanes { return TERRACE_DISPATCH(log_lanes); }, [](double x) { return std::log(x); },
                 1.5);
}

TEST(Math, TheSignOfZeroAndTheEndsAreKept) {
  const float in[16] = {0.0f, -0.0f, 1.0f, kInf, -kInf, 1e-40f, -1e-40f};
  float out[16];
  TERRACE_DISPATCH(tanh_lanes)(in, out);
  EXPECT_TRUE(same(out[0], 0.0f));
  EXPECT_TRUE(same(out[1], -0.0f));
  EXPECT_TRUE(same(out[3], 1.0f));
  EXPECT_TRUE(same(out[4], -1.0f));
  EXPECT_TRUE(same(out[5], 1e-40f));
  EXPECT_TRUE(same(out[6], -1e-40f));
  TERRACE_DISPATCH(exp_lanes)(in, out);
  EXPECT_TRUE(same(out[0], 1.0f));
  EXPECT_TRUE(same(out[3], kInf));
  EXPECT_TRUE(same(out[4], 0.0f));
  TERRACE_DISPATCH(log_lanes)(in, out);
  EXPECT_TRUE(same(out[0], -kInf));
  EXPECT_TRUE(same(out[1], -kInf));
  EXPECT_TRUE(same(out[2], 0.0f));
  EXPECT_TRUE(same(out[3], kInf));
  EXPECT_TRUE(std::isnan(out[4]));
}

// The reduction rule written out: sixteen lanes, then the tree.
float plain_tree_sum(const std::vector<float>& in) {
  float lane[16] = {};
  for (std::size_t i = 0; i < in.size(); ++i) lane[i % 16] = lane[i % 16] + in[i];
  for (int step = 8; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) lane[i] = lane[i] + lane[i + step];
  }
  return lane[0];
}

TEST(Lanes, ReductionsFollowTheRuleAtEveryLength) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (std::size_t n = 0; n <= 100; ++n) {
    std::vector<float> in(n);
    double squares = 0;
    for (float& x : in) {
      x = normal(random);
      squares += static_cast<double>(x) * x;
    }
    const float sum = plain_tree_sum(in);
    const float largest = n == 0 ? -kInf : *std::max_element(in.begin(), in.end());
    for (const SimdTarget target : supported_simd_targets()) {
      set_simd_target(target);
      float out[4];
      TERRACE_DISPATCH(reduce)(in.data(), n, out);
      EXPECT_TRUE(same(out[0], sum)) << simd_target_name(target) << " " << n;
      EXPECT_TRUE(same(out[1], largest)) << simd_target_name(target) << " " << n;
      EXPECT_EQ(out[2], 1.0f);
      EXPECT_NEAR(out[3], squares, 1e-6 * squares);
      for (std::size_t bad = 0; bad < n; ++bad) {
        std::vector<float> broken = in;
        broken[bad] = bad % 3 == 0 ? kInf : bad % 3 == 1 ? -kInf : std::nanf("");
        TERRACE_DISPATCH(reduce)(broken.data(), n, out);
        ASSERT_EQ(out[2], 0.0f) << simd_target_name(target) << " " << bad << " of " << n;
      }
    }
  }
}

TEST(Lanes, EveryOperationAgreesBetweenTargets) {
  std::mt19937 random(2);
  const auto targets = supported_simd_targets();
  for (int round = 0; round < 2000; ++round) {
    float a[16];
    float b[16];
    for (int i = 0; i < 16; ++i) {
      a[i] = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
      b[i] = random() % 8 == 0 ? a[i] : std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    }
    float want[16 * 16];
    for (const SimdTarget target : targets) {
      set_simd_target(target);
      float got[16 * 16];
      TERRACE_DISPATCH(mixture)(a, b, got);
      if (target == SimdTarget::scalar) std::memcpy(want, got, sizeof want);
      for (int i = 0; i < 16 * 16; ++i) {
        ASSERT_TRUE(same(got[i], want[i])) << simd_target_name(target) << " operation " << i / 16;
      }
    }
    for (int i = 0; i < 16; ++i) {  // and the scalar lanes do what they say
      ASSERT_TRUE(same(want[i], a[i] + b[i]));
      ASSERT_TRUE(same(want[32 + i], a[i] * b[i]));
      ASSERT_TRUE(same(want[48 + i], a[i] / b[i]));
      ASSERT_TRUE(same(want[64 + i], std::fma(a[i], b[i], a[i])));
      ASSERT_TRUE(same(want[80 + i], a[i] > b[i] ? a[i] : b[i]));
      ASSERT_TRUE(same(want[208 + i], to_float(to_bf16(a[i]))));
      ASSERT_TRUE(same(want[224 + i], to_float(to_f16(a[i]))));
    }
  }
}

}  // namespace
}  // namespace terrace
#endif
