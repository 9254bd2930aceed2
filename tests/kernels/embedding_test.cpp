#include "kernels/cpu/embedding.h"

#include "tests/kernels/model_kernel.h"

namespace terrace::testing {
namespace {

template <typename T>
class Embedding : public ::testing::Test {};
TYPED_TEST_SUITE(Embedding, KernelTypes);

TYPED_TEST(Embedding, AddsExactlyOnEveryTarget) {
  using T = TypeParam;
  for (const std::size_t numel : kLengths) {
    Array<T> a(numel, 1);
    Array<T> b(numel, 2);
    const auto run = [&] {
      Array<T> out(numel);
      add_rows(a.data(), b.data(), out.data(), numel);
      Array<float> sum(numel, 3);
      Array<float> before(numel, 3);
      accumulate_row(b.data(), sum.data(), numel);
      for (std::size_t i = 0; i < numel; ++i) {
        EXPECT_EQ(out.memory[i], from_float<T>(to_float(a.memory[i]) + to_float(b.memory[i])));
        EXPECT_EQ(sum.memory[i], before.memory[i] + to_float(b.memory[i]));
      }
      std::vector<std::byte> all = out.bytes();
      append(all, sum.bytes());
      return all;
    };
    expect_same_on_targets(run, std::to_string(numel));
  }
}

}  // namespace
}  // namespace terrace::testing
