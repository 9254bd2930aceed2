#include "kernels/cpu/layernorm.h"

#include "tests/kernels/model_kernel.h"

namespace terrace::testing {
namespace {

template <typename T>
class LayerNorm : public ::testing::Test {};
TYPED_TEST_SUITE(LayerNorm, KernelTypes);

struct Row {
  double mean = 0;
  double rstd = 0;
};
template <typename T>
Row row_of(Array<T>& in, std::size_t r, std::size_t width) {
  Row row;
  for (std::size_t c = 0; c < width; ++c) row.mean += in[r * width + c] / static_cast<double>(width);
  double variance = 0;
  for (std::size_t c = 0; c < width; ++c) variance += std::pow(in[r * width + c] - row.mean, 2);
  row.rstd = 1 / std::sqrt(variance / static_cast<double>(width) + double{kLayerNormEpsilon});
  return row;
}

TYPED_TEST(LayerNorm, MatchesDoublePrecisionOnEveryTarget) {
  using T = TypeParam;
  const std::size_t rows = 3;
  for (const std::size_t width : kLengths) {
    Array<T> in(rows * width, 1, 2.0f);
    Array<T> gain(width, 2);
    Array<T> bias(width, 3);
    const auto run = [&] {
      Array<T> out(rows * width);
      Array<float> mean(rows);
      Array<float> rstd(rows);
      layernorm(in.data(), rows, width, gain.data(), bias.data(), out.data(), mean.data(), rstd.data());
      for (std::size_t r = 0; r < rows; ++r) {
        const Row want = row_of(in, r, width);
        EXPECT_NEAR(mean[r], want.mean, 1e-6 * (1 + std::abs(want.mean)));
        EXPECT_NEAR(rstd[r], want.rstd, 1e-5 * want.rstd);
        for (std::size_t c = 0; c < width; ++c) {
          const double y = (in[r * width + c] - want.mean) * want.rstd * gain[c] + bias[c];
          EXPECT_NEAR(out[r * width + c], y, allowed<T>(y)) << width;
        }
      }
      std::vector<std::byte> all = out.bytes();
      append(all, mean.bytes());
      append(all, rstd.bytes());
      return all;
    };
    expect_same_on_targets(run, "width " + std::to_string(width));
  }
}

TYPED_TEST(LayerNorm, BackwardMatchesDoublePrecisionOnEveryTarget) {
  using T = TypeParam;
  const std::size_t rows = 3;
  for (const std::size_t width : kLengths) {
    for (const bool with_residual : {false, true}) {
      Array<T> in(rows * width, 1, 2.0f);
      Array<T> dout(rows * width, 2);
      Array<T> gain(width, 3);
      Array<T> residual(rows * width, 4);
      Array<float> mean(rows);
      Array<float> rstd(rows);
      for (std::size_t r = 0; r < rows; ++r) {
        const Row row = row_of(in, r, width);
        mean.memory[r] = static_cast<float>(row.mean);
        rstd.memory[r] = static_cast<float>(row.rstd);
      }
      const auto run = [&] {
        Array<T> din(rows * width);
        layernorm_backward(in.data(), dout.data(), with_residual ? residual.data() : nullptr, rows, width,
                           gain.data(), mean.data(), rstd.data(), din.data());
        for (std::size_t r = 0; r < rows; ++r) {
          double sum = 0;
          double weighted = 0;
          for (std::size_t c = 0; c < width; ++c) {
            const double h = dout[r * width + c] * gain[c];
            sum += h / static_cast<double>(width);
            weighted += h * (in[r * width + c] - mean[r]) * rstd[r] / static_cast<double>(width);
          }
          for (std::size_t c = 0; c < width; ++c) {
            const double normal = (in[r * width + c] - mean[r]) * rstd[r];
            double d = rstd[r] * (dout[r * width + c] * gain[c] - sum - normal * weighted);
            if (with_residual) d += residual[r * width + c];
            EXPECT_NEAR(din[r * width + c], d, allowed<T>(d, 1e-5, 1 + rstd[r])) << width;
          }
        }
        return din.bytes();
      };
      expect_same_on_targets(run, "width " + std::to_string(width));
    }
  }
}

TYPED_TEST(LayerNorm, ColumnsMatchDoublePrecisionOnEveryTarget) {
  using T = TypeParam;
  for (const std::size_t columns : kLengths) {
    for (const std::size_t rows : {1, 63, 64, 65, 200}) {
      const std::size_t stride = columns + 5;
      Array<T> in(rows * stride, 1, 2.0f);
      Array<T> dout(rows * stride, 2);
      Array<float> mean(rows, 3);
      Array<float> rstd(rows, 4);
      const auto run = [&] {
        Array<float> dgain(columns);
        Array<float> dbias(columns);
        layernorm_backward_columns(in.data(), dout.data(), rows, stride, columns, mean.data(), rstd.data(),
                                   dgain.data(), dbias.data());
        for (std::size_t c = 0; c < columns; ++c) {
          double want_gain = 0;
          double want_bias = 0;
          for (std::size_t r = 0; r < rows; ++r) {
            want_gain += dout[r * stride + c] * (in[r * stride + c] - mean[r]) * rstd[r];
            want_bias += dout[r * stride + c];
          }
          EXPECT_NEAR(dgain[c], want_gain, 1e-4);
          EXPECT_NEAR(dbias[c], want_bias, 1e-4);
        }
        std::vector<std::byte> all = dgain.bytes();
        append(all, dbias.bytes());
        return all;
      };
      expect_same_on_targets(run, std::to_string(rows) + " rows of " + std::to_string(columns));
    }
  }
}

TEST(LayerNormValues, ConstantRowGivesTheBias) {
  std::vector<float> in(20, 3.0f);
  std::vector<float> gain(20, 2.0f);
  std::vector<float> bias(20, 0.5f);
  float mean = 0;
  float rstd = 0;
  layernorm(in.data(), 1, 20, gain.data(), bias.data(), in.data(), &mean, &rstd);
  EXPECT_EQ(in, bias);
  EXPECT_EQ(mean, 3.0f);
}

}  // namespace
}  // namespace terrace::testing
