#include "kernels/cpu/gelu.h"

#include "tests/kernels/model_kernel.h"

namespace terrace::testing {
namespace {

template <typename T>
class Gelu : public ::testing::Test {};
TYPED_TEST_SUITE(Gelu, KernelTypes);

const double kRoot = std::sqrt(2 / std::acos(-1.0));
double inner(double x) {
  return std::tanh(kRoot * (x + 0.044715 * x * x * x));
}
double gelu(double x) {
  return 0.5 * x * (1 + inner(x));
}
double gelu_derivative(double x) {
  const double t = inner(x);
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kRoot * (1 + 3 * 0.044715 * x * x);
}

TYPED_TEST(Gelu, TilesMatchDoublePrecisionOnEveryTarget) {
  using T = TypeParam;
  const std::size_t rows = 4;
  for (const std::size_t columns : kLengths) {
    const std::size_t stride = columns + 3;
    const std::size_t numel = (rows - 1) * stride + columns;
    Array<float> tile((rows - 1) * (columns + 1) + columns, 1, 3.0f);
    Array<T> bias(columns, 2);
    const auto run = [&] {
      Array<T> before(numel);
      Array<T> after(numel);
      Array<T> dbefore(numel);
      Array<T> again(numel);
      bias_gelu(tile.data(), columns + 1, rows, columns, bias.data(), before.data(), after.data(), stride);
      gelu_backward(tile.data(), columns + 1, rows, columns, before.data(), dbefore.data(), again.data(),
                    stride);
      for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t c = 0; c < columns; ++c) {
          const std::size_t i = r * stride + c;
          const double sum = tile[r * (columns + 1) + c] + bias[c];
          EXPECT_NEAR(before[i], sum, allowed<T>(sum, 1e-6));
          EXPECT_NEAR(after[i], gelu(before[i]), allowed<T>(gelu(before[i]), 1e-6));
          const double d = tile[r * (columns + 1) + c] * gelu_derivative(before[i]);
          EXPECT_NEAR(dbefore[i], d, allowed<T>(d, 2e-6, std::abs(tile[r * (columns + 1) + c])));
        }
      }
      EXPECT_EQ(after.bytes(), again.bytes()) << "backward gives forward's value again";
      std::vector<std::byte> all = before.bytes();
      append(all, after.bytes());
      append(all, dbefore.bytes());
      return all;
    };
    expect_same_on_targets(run, std::to_string(columns) + " columns");
  }
}

TEST(GeluValues, FarFromZero) {
  const std::vector<float> tile{-1e30f, -50.0f, -0.0f, 0.0f, 50.0f, 1e30f};
  const std::vector<float> bias(6, 0.0f);
  std::vector<float> before(6);
  std::vector<float> after(6);
  bias_gelu(tile.data(), 6, 1, 6, bias.data(), before.data(), after.data(), 6);
  EXPECT_EQ(after[1], 0.0f);
  EXPECT_EQ(after[3], 0.0f);
  EXPECT_EQ(after[4], 50.0f);
  EXPECT_EQ(after[5], 1e30f);
  EXPECT_FALSE(std::isnan(after[0]));
}

}  // namespace
}  // namespace terrace::testing
