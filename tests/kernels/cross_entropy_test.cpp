#include "kernels/cpu/cross_entropy.h"

#include "tests/kernels/model_kernel.h"

namespace terrace::testing {
namespace {

template <typename T>
class CrossEntropy : public ::testing::Test {};
TYPED_TEST_SUITE(CrossEntropy, KernelTypes);

constexpr std::size_t kRows = 3;

// A row of `columns` logits cut into tiles of `piece` columns gives the softmax of the whole, whatever the
// cut.
TYPED_TEST(CrossEntropy, PartsJoinToTheWholeOnEveryTarget) {
  using T = TypeParam;
  for (const std::size_t columns : kLengths) {
    for (const std::size_t piece : {1, 5, 16, 40, 200}) {
      const std::size_t parts = (columns + piece - 1) / piece;
      Array<float> logits(kRows * columns, 1, 5.0f);
      const auto run = [&] {
        Array<T> values(kRows * columns);
        Array<float> most(kRows * parts);
        Array<float> sums(kRows * parts);
        for (std::size_t part = 0; part < parts; ++part) {
          const std::size_t column = part * piece;
          exponentials_tile(logits.data() + column, columns, kRows, std::min(piece, columns - column),
                            values.data() + column, columns, most.data() + part, sums.data() + part, parts);
        }
        for (std::size_t r = 0; r < kRows; ++r) {
          double sum = 0;
          for (std::size_t c = 0; c < columns; ++c) sum += std::exp(logits[r * columns + c]);
          const JoinedRow joined = join_parts(most.data() + r * parts, sums.data() + r * parts, parts);
          const double lse = joined.largest + std::log(double{joined.sum});
          EXPECT_NEAR(lse, std::log(sum), 2e-6 * (1 + std::abs(lse)));
          float* factor = sums.data() + r * parts;
          part_factors(most.data() + r * parts, parts, static_cast<float>(lse), 0.25f, factor);
          for (std::size_t part = 0; part < parts; ++part) {
            const std::size_t column = part * piece;
            scale_tile(values.data() + r * columns + column, columns, 1, std::min(piece, columns - column),
                       factor + part, 1);
          }
          for (std::size_t c = 0; c < columns; ++c) {
            const double want = 0.25 * std::exp(logits[r * columns + c]) / sum;
            // Two roundings to T.
            EXPECT_NEAR(values[r * columns + c], want, 2 * allowed<T>(want, 1e-6));
          }
        }
        std::vector<std::byte> all = values.bytes();
        append(all, most.bytes());
        append(all, sums.bytes());
        return all;
      };
      expect_same_on_targets(run, std::to_string(columns) + " in " + std::to_string(piece));
    }
  }
}

TEST(CrossEntropyValues, WithoutExponentialsTheSameParts) {
  Array<float> logits(3 * 50, 1, 5.0f);
  std::vector<float> values(3 * 50);
  std::vector<float> most(3), sums(3), most_alone(3), sums_alone(3);
  exponentials_tile(logits.data(), 50, 3, 50, values.data(), 50, most.data(), sums.data(), 1);
  exponentials_tile(logits.data(), 50, 3, 50, static_cast<float*>(nullptr), 50, most_alone.data(),
                    sums_alone.data(), 1);
  EXPECT_EQ(most, most_alone);
  EXPECT_EQ(sums, sums_alone);
}

TEST(CrossEntropyValues, NanReachesTheSum) {
  for (const SimdTarget target : supported_simd_targets()) {
    set_simd_target(target);
    std::vector<float> logits(40, 0.5f);
    logits[3] = NAN;
    float most[2];
    float sums[2];
    exponentials_tile(logits.data(), 20, 2, 20, static_cast<float*>(nullptr), 0, most, sums, 1);
    EXPECT_TRUE(std::isnan(sums[0]));
    EXPECT_EQ(sums[1], 20.0f);
    EXPECT_TRUE(std::isnan(join_parts(most, sums, 2).sum));
  }
}

}  // namespace
}  // namespace terrace::testing
