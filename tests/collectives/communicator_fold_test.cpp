// What every Communicator's reduce-scatter must do: contract C1's fold, to the bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "src/base/units.h"
#include "tests/collectives/ranks.h"
#include "tests/collectives/values.h"

namespace terrace {
namespace {

using Bytes = std::vector<std::byte>;

class CommunicatorFold : public CommunicatorSuite {};

// The step's contributions: k of C, each over the whole flat parameter.
std::vector<Bytes> contributions_of(std::uint64_t seed, int count, DType dtype, std::uint64_t numel) {
  std::vector<Bytes> all;
  for (int k = 0; k < count; ++k) all.push_back(random_gradient(seed_of(seed, k), dtype, numel));
  return all;
}

std::uint32_t bits(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

// This rank's part of the folded step: rank r brings contributions r, r + N, ...; M = ceil(C/N) rounds.
struct Folded {
  std::vector<float> sum;
  std::vector<double> block_sums;
  FoldResult last;
};

Folded fold_step(Communicator& world, const std::vector<Bytes>& contributions, DType dtype,
                 const std::vector<Part>& parts) {
  const std::uint64_t mine = parts[at(world.rank())].numel;
  const int count = static_cast<int>(contributions.size()), n = world.size();
  Folded folded{.sum = std::vector<float>(mine, 123.0f),
                .block_sums = std::vector<double>(div_up(mine, kBlockNumel), -1.0),
                .last = {}};
  for (int begin = 0; begin < count; begin += n) {
    const int k = begin + world.rank();
    const FoldRound round{.started = begin > 0, .last = begin + n >= count};
    Bytes gradient;
    if (k < count) gradient = contributions[at(k)];
    std::optional<std::span<const std::byte>> sends;
    if (k < count) sends = gradient;
    folded.last =
        world.reduce_scatter({.what = "h.3", .unit = 4, .step = 7}, dtype, parts, sends, folded.sum, round,
                             round.last ? std::span(folded.block_sums) : std::span<double>());
    EXPECT_EQ(folded.last.contributions, std::min(n, count - begin));
    std::ranges::fill(gradient, std::byte{0xFF});  // NaN: nobody may still be reading it
  }
  return folded;
}

void check_step(Communicator& world, std::uint64_t seed, int count, DType dtype,
                const std::vector<Part>& parts, std::uint64_t numel) {
  const std::vector<Bytes> contributions = contributions_of(seed, count, dtype, numel);
  const Folded folded = fold_step(world, contributions, dtype, parts);
  const Part& mine = parts[at(world.rank())];
  for (std::uint64_t i = 0; i < mine.numel; ++i) {
    const float want = plain_fold(contributions, dtype, mine.offset + i, true);
    ASSERT_EQ(bits(folded.sum[i]), bits(want)) << "element " << i << " of " << mine.numel << ", " << count
                                               << " contributions over " << world.size() << " ranks";
  }
  for (std::size_t b = 0; b < folded.block_sums.size(); ++b) {
    const std::uint64_t begin = b * kBlockNumel;
    const auto block =
        std::span(folded.sum).subspan(begin, std::min<std::uint64_t>(kBlockNumel, mine.numel - begin));
    ASSERT_EQ(folded.block_sums[b], plain_block_sum(block)) << "block " << b;
  }
  ASSERT_TRUE(folded.last.finite);
}

TEST_P(CommunicatorFold, AnyNumberOfContributionsOverAnyNumberOfRanks) {
  for (const int ranks : {1, 2, 3, 4, 5, 8}) {
    run_ranks(ranks, [&](Communicator& world) {
      for (int count = 1; count <= 9; ++count) {
        for (const DType dtype : kGradientTypes) {
          // The same flat parameter for every N, cut at blocks: the same bits whatever the cut.
          const std::uint64_t blocks = 6, numel = blocks * kBlockNumel;
          std::vector<std::uint64_t> numels(at(ranks), 0);
          for (std::uint64_t b = 0; b < blocks; ++b) numels[b % at(ranks)] += kBlockNumel;
          check_step(world, 1, count, dtype, consecutive_parts(numels), numel);
        }
      }
    });
  }
}

TEST_P(CommunicatorFold, PartsOfEveryLength) {
  for (const int ranks : {1, 2, 4}) {
    run_ranks(ranks, [&](Communicator& world) {
      std::uint64_t seed = 0;
      for (const std::uint64_t numel : {0, 1, 15, 16, 17, 97, 4095, 4096, 4097, 16383, 16384, 16385, 33001}) {
        std::vector<std::uint64_t> numels(at(ranks), numel);
        numels.back() = 1;
        std::mt19937_64 random(++seed);
        const Layout layout = scattered(random, numels);
        check_step(world, seed, 3, kGradientTypes[seed % 3], layout.parts, layout.numel);
      }
      std::mt19937_64 random(5);
      for (int i = 0; i < 10; ++i) {
        const Layout layout = scattered(random, random_numels(random, ranks));
        check_step(world, ++seed, 1 + i % 5, kGradientTypes[i % 3], layout.parts, layout.numel);
      }
    });
  }
}

// Who is there is any subset; the first one there starts the sum.
TEST_P(CommunicatorFold, AnyRanksMayBeAbsent) {
  run_ranks(4, [](Communicator& world) {
    constexpr std::uint64_t kNumel = 20;
    const std::vector<Part> parts = equal_parts(4, kNumel);
    for (unsigned present = 0; present < 16; ++present) {
      for (const bool started : {false, true}) {
        for (const bool last : {false, true}) {
          std::vector<Bytes> folded;
          if (started) folded.push_back(random_gradient(99, DType::f32, 4 * kNumel));
          std::vector<float> sum(kNumel, 123.0f);
          std::vector<double> block_sums(last ? 1 : 0, -1.0);
          const std::uint64_t begin = parts[at(world.rank())].offset;
          for (std::uint64_t i = 0; started && i < kNumel; ++i) {
            sum[i] = element(folded[0], DType::f32, begin + i);
          }
          int count = 0;
          Bytes mine;
          for (int r = 0; r < 4; ++r) {
            if (((present >> r) & 1) == 0) continue;
            ++count;
            folded.push_back(random_gradient(seed_of(present, r), DType::f32, 4 * kNumel));
            if (r == world.rank()) mine = folded.back();
          }
          const FoldResult result = world.reduce_scatter(
              {}, DType::f32, parts,
              mine.empty() ? std::nullopt : std::optional<std::span<const std::byte>>(mine), sum,
              {started, last}, block_sums);
          EXPECT_EQ(result.contributions, count);
          for (std::uint64_t i = 0; i < kNumel; ++i) {
            const float want = folded.empty() ? 123.0f : plain_fold(folded, DType::f32, begin + i, last);
            ASSERT_EQ(bits(sum[i]), bits(want)) << present << " element " << i;
          }
          if (last) {
            EXPECT_EQ(block_sums[0], folded.empty() ? -1.0 : plain_block_sum(sum));
          }
        }
      }
    }
  });
}

TEST_P(CommunicatorFold, ALastRoundWithoutContributionsRoundsTheSum) {
  run_ranks(2, [](Communicator& world) {
    for (const std::uint64_t numel : {1, 2, 4096, 4097, 20000, 20001}) {
      const DType dtype = numel % 2 == 0 ? DType::bf16 : DType::f16;
      const Bytes start = random_gradient(seed_of(numel, world.rank()), DType::f32, numel);
      std::vector<float> sum(numel), want;
      for (std::uint64_t i = 0; i < numel; ++i) {
        sum[i] = element(start, DType::f32, i) * 1.01f;
        want.push_back(rounded_to(dtype, sum[i]));
      }
      std::vector<double> block_sums(div_up(numel, kBlockNumel));
      const FoldResult result = world.reduce_scatter({}, dtype, equal_parts(2, numel), std::nullopt, sum,
                                                     {.started = true, .last = true}, block_sums);
      EXPECT_EQ(result.contributions, 0);
      EXPECT_TRUE(result.finite);
      EXPECT_EQ(sum, want);
      for (std::size_t b = 0; b < block_sums.size(); ++b) {
        const std::uint64_t begin = b * kBlockNumel;
        EXPECT_EQ(block_sums[b], plain_block_sum(std::span(want).subspan(
                                     begin, std::min<std::uint64_t>(kBlockNumel, numel - begin))));
      }
    }
  });
}

// Each contribution is within fp16, their sum is not: rounding makes it infinite, and its owner sees it.
TEST_P(CommunicatorFold, ASumBeyondFp16IsNotFinite) {
  run_ranks(3, [](Communicator& world) {
    constexpr std::uint64_t kNumel = kBlockNumel + 5;
    std::vector<f16> gradient(3 * kNumel, to_f16(1.0f));
    gradient[kNumel + 2] = to_f16(30000.0f);  // of rank 1
    std::vector<float> sum(kNumel);
    std::vector<double> block_sums(2);
    const FoldResult result = world.reduce_scatter({}, DType::f16, equal_parts(3, kNumel), bytes_of(gradient),
                                                   sum, {.last = true}, block_sums);
    EXPECT_EQ(result.finite, world.rank() != 1);
    EXPECT_EQ(std::isinf(block_sums[0]), world.rank() == 1);
    EXPECT_EQ(sum[2], world.rank() == 1 ? std::numeric_limits<float>::infinity() : 3.0f);
  });
}

TEST_P(CommunicatorFold, AMinusZeroOfTheFirstOnePresentStays) {
  run_ranks(3, [](Communicator& world) {
    const std::vector<bf16> gradient(3, bf16{0x8000});
    std::vector<float> sum(1, 1.0f);
    std::optional<std::span<const std::byte>> sends;
    if (world.rank() > 0) sends = bytes_of(gradient);  // rank 0 is absent, which is not zero
    world.reduce_scatter({}, DType::bf16, equal_parts(3, 1), sends, sum, {});
    EXPECT_EQ(bits(sum[0]), 0x80000000u);
  });
}

TEST_P(CommunicatorFold, OnlyTheOwnerOfAnElementThatIsNotFiniteSeesIt) {
  const float bad_values[] = {std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()};
  for (int bad = 0; bad < 3; ++bad) {
    for (const float value : bad_values) {
      run_ranks(3, [&](Communicator& world) {
        constexpr std::uint64_t kNumel = 2 * kBlockNumel + 5;
        std::vector<float> gradient(3 * kNumel, 0.5f);
        if (world.rank() == 1) gradient[at(bad) * kNumel + kBlockNumel] = value;
        std::vector<float> sum(kNumel);
        std::vector<double> block_sums(3);
        const FoldResult result = world.reduce_scatter({}, DType::f32, equal_parts(3, kNumel),
                                                       bytes_of(gradient), sum, {.last = true}, block_sums);
        EXPECT_EQ(result.finite, world.rank() != bad);
        EXPECT_EQ(std::isinf(block_sums[1]), world.rank() == bad);
        EXPECT_FALSE(std::isinf(block_sums[0]) || std::isinf(block_sums[2]));
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, CommunicatorFold, testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace terrace
