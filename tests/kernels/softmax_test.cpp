#include "kernels/cpu/softmax.h"

#include "tests/kernels/model_kernel.h"

namespace terrace::testing {
namespace {

template <typename T>
class Softmax : public ::testing::Test {};
TYPED_TEST_SUITE(Softmax, KernelTypes);

constexpr std::size_t kRows = 5;
constexpr float kScale = 0.3f;

// exp(score * scale) over the seen keys of row r, and their sum.
double weight_sum(Array<float>& scores, std::size_t columns, std::size_t r, std::size_t seen) {
  double sum = 0;
  for (std::size_t c = 0; c < std::min(columns, seen + r); ++c)
    sum += std::exp(double{kScale} * scores[r * columns + c]);
  return sum;
}

TYPED_TEST(Softmax, CausalRowsMatchDoublePrecisionOnEveryTarget) {
  using T = TypeParam;
  for (const std::size_t columns : kLengths) {
    const std::size_t seen = columns > kRows ? columns - kRows + 1 : 1;  // a tile on the diagonal
    Array<float> scores(kRows * columns, 1, 4.0f);
    const auto run = [&] {
      Array<T> weights(kRows * columns);
      Array<float> lse(kRows);
      Array<float> inverse(kRows);
      causal_softmax(scores.data(), columns, kRows, seen, columns, kScale, weights.data(), lse.data(),
                     inverse.data());
      for (std::size_t r = 0; r < kRows; ++r) {
        const double sum = weight_sum(scores, columns, r, seen);
        EXPECT_NEAR(lse[r], std::log(sum), 2e-6 * (1 + std::abs(std::log(sum))));
        for (std::size_t c = 0; c < columns; ++c) {
          const bool visible = c < seen + r;
          const double want = visible ? std::exp(double{kScale} * scores[r * columns + c]) / sum : 0;
          EXPECT_NEAR(weights[r * columns + c] * inverse[r], want, allowed<T>(want, 1e-5)) << columns;
          if (!visible) {
            EXPECT_EQ(weights[r * columns + c], 0);
          }
        }
      }
      std::vector<std::byte> all = weights.bytes();
      append(all, lse.bytes());
      append(all, inverse.bytes());
      return all;
    };
    expect_same_on_targets(run, std::to_string(columns) + " columns");
  }
}

TYPED_TEST(Softmax, BackwardMatchesDoublePrecisionOnEveryTarget) {
  using T = TypeParam;
  for (const std::size_t columns : kLengths) {
    const std::size_t seen = columns > kRows ? columns - kRows + 1 : 1;
    Array<float> scores(kRows * columns, 1, 4.0f);
    Array<float> dprobabilities(kRows * columns, 2);
    Array<float> delta(kRows, 3);
    Array<float> lse(kRows);
    for (std::size_t r = 0; r < kRows; ++r) {
      lse.memory[r] = static_cast<float>(std::log(weight_sum(scores, columns, r, seen)));
    }
    const auto run = [&] {
      Array<T> probabilities(kRows * columns);
      Array<T> dscores(kRows * columns);
      causal_softmax_backward(scores.data(), dprobabilities.data(), columns, kRows, seen, columns, kScale,
                              lse.data(), delta.data(), probabilities.data(), dscores.data());
      for (std::size_t r = 0; r < kRows; ++r) {
        for (std::size_t c = 0; c < columns; ++c) {
          const std::size_t i = r * columns + c;
          const double p = c < seen + r ? std::exp(double{kScale} * scores[i] - lse[r]) : 0;
          const double d = p * (dprobabilities[i] - delta[r]) * double{kScale};
          EXPECT_NEAR(probabilities[i], p, allowed<T>(p, 1e-6));
          EXPECT_NEAR(dscores[i], d, allowed<T>(d, 1e-6));
        }
      }
      std::vector<std::byte> all = probabilities.bytes();
      append(all, dscores.bytes());
      return all;
    };
    expect_same_on_targets(run, std::to_string(columns) + " columns");
  }
}

TYPED_TEST(Softmax, RowHelpersMatchDoublePrecisionOnEveryTarget) {
  using T = TypeParam;
  for (const std::size_t columns : kLengths) {
    const std::size_t stride = columns + 3;
    const std::size_t numel = (kRows - 1) * stride + columns;
    Array<float> tile(kRows * columns, 1);
    Array<float> factor(kRows, 2);
    Array<T> a(numel, 3);
    Array<T> b(numel, 4);
    const auto run = [&] {
      Array<T> scaled(numel);
      Array<float> dots(kRows);
      scale_rows(tile.data(), columns, kRows, columns, factor.data(), scaled.data(), stride);
      row_dots(a.data(), b.data(), stride, kRows, columns, dots.data());
      for (std::size_t r = 0; r < kRows; ++r) {
        double dot = 0;
        for (std::size_t c = 0; c < columns; ++c) {
          dot += a[r * stride + c] * b[r * stride + c];
          const double want = tile[r * columns + c] * factor[r];
          EXPECT_NEAR(scaled[r * stride + c], want, allowed<T>(want, 1e-7));
        }
        EXPECT_NEAR(dots[r], dot, 2e-5);
      }
      std::vector<std::byte> all = scaled.bytes();
      append(all, dots.bytes());
      return all;
    };
    expect_same_on_targets(run, std::to_string(columns) + " columns");
  }
}

TEST(SoftmaxValues, LargeScoresDoNotOverflow) {
  const std::vector<float> scores{3e38f, 3e38f, -3e38f};
  std::vector<float> weights(3);
  float lse = 0;
  float inverse = 0;
  causal_softmax(scores.data(), 3, 1, 3, 3, 1e-30f, weights.data(), &lse, &inverse);
  EXPECT_EQ(weights[0], 1.0f);
  EXPECT_EQ(weights[2], 0.0f);
  EXPECT_EQ(inverse, 0.5f);
}

TEST(SoftmaxValues, NanStaysNan) {
  for (const SimdTarget target : supported_simd_targets()) {
    set_simd_target(target);
    std::vector<float> scores(20, 1.0f);
    scores[7] = NAN;
    std::vector<float> weights(20);
    float lse = 0;
    float inverse = 0;
    causal_softmax(scores.data(), 20, 1, 20, 20, 1.0f, weights.data(), &lse, &inverse);
    EXPECT_TRUE(std::isnan(lse));
    EXPECT_TRUE(std::isnan(inverse));
  }
}

}  // namespace
}  // namespace terrace::testing
