#include "kernels/cpu/tile.h"

#include "tests/kernels/model_kernel.h"

namespace terrace::testing {
namespace {

template <typename T>
class Tile : public ::testing::Test {};
TYPED_TEST_SUITE(Tile, KernelTypes);

template <typename T>
T sum_of(std::initializer_list<double> parts) {  // fp32 sums in order, rounded once
  float sum = 0;
  bool first = true;
  for (const double part : parts) {
    sum = first ? static_cast<float>(part) : static_cast<float>(part) + sum;
    first = false;
  }
  return from_float<T>(sum);
}

TYPED_TEST(Tile, FinishesExactlyOnEveryTarget) {
  using T = TypeParam;
  const std::size_t rows = 3;
  for (const std::size_t columns : kLengths) {
    const std::size_t stride = columns + 7;
    const std::size_t numel = (rows - 1) * stride + columns;
    Array<float> tile(rows * columns, 1);
    Array<T> bias(columns, 2);
    Array<T> residual(numel, 3);
    const auto run = [&] {
      Array<T> stored(numel);
      Array<T> biased(numel);
      Array<T> added(numel);
      store_tile(tile.data(), columns, rows, columns, stored.data(), stride);
      bias_tile(tile.data(), columns, rows, columns, bias.data(), biased.data(), stride);
      bias_residual_tile(tile.data(), columns, rows, columns, bias.data(), residual.data(), added.data(),
                         stride);
      for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t c = 0; c < columns; ++c) {
          const std::size_t i = r * stride + c;
          const double x = tile[r * columns + c];
          EXPECT_EQ(stored.memory[i], sum_of<T>({x}));
          EXPECT_EQ(biased.memory[i], sum_of<T>({x, bias[c]}));
          EXPECT_EQ(added.memory[i], sum_of<T>({x, bias[c], residual[i]}));
        }
      }
      std::vector<std::byte> all = stored.bytes();  // the gaps between rows included: untouched
      append(all, biased.bytes());
      append(all, added.bytes());
      return all;
    };
    expect_same_on_targets(run, std::to_string(columns) + " columns");
  }
}

TYPED_TEST(Tile, ColumnSumsMatchDoublePrecisionOnEveryTarget) {
  using T = TypeParam;
  for (const std::size_t columns : kLengths) {
    for (const std::size_t rows : {0, 1, 63, 64, 65, 300}) {
      const std::size_t stride = columns + 2;
      Array<T> in(rows * stride + 1, 1);
      const auto run = [&] {
        Array<float> out(columns);
        column_sums(in.data(), rows, stride, columns, out.data());
        for (std::size_t c = 0; c < columns; ++c) {
          double want = 0;
          for (std::size_t r = 0; r < rows; ++r) want += in[r * stride + c];
          EXPECT_NEAR(out[c], want, 2e-5);
        }
        return out.bytes();
      };
      expect_same_on_targets(run, std::to_string(rows) + " rows of " + std::to_string(columns));
    }
  }
}

}  // namespace
}  // namespace terrace::testing
