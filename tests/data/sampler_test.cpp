#include "src/data/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "src/data/permutation.h"
#include "tests/data/file_text.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class SamplerTest : public testing::Test {
 protected:
  // Token i of the file is i: what a sample holds says where it came from.
  TokenFile counting_file(std::uint32_t count, const std::string& name = "t") {
    std::vector<std::uint32_t> tokens(count);
    std::iota(tokens.begin(), tokens.end(), 0u);
    TokenFileWriter writer(folder_.file(name), 4, std::uint64_t{1} << 20);
    writer.append(tokens);
    writer.finish();
    return TokenFile(folder_.file(name));
  }
  TempDir folder_;
};

TEST(Permutation, VisitsEveryIndexOnceForEverySize) {
  std::vector<std::uint64_t> sizes(300);
  std::iota(sizes.begin(), sizes.end(), 1);
  for (const std::uint64_t size : {1023, 1024, 1025, 4095, 4096, 4097, 65537, 100003}) sizes.push_back(size);
  for (const std::uint64_t size : sizes) {
    const Permutation permutation(size, 5, 2);
    std::vector<bool> seen(size);
    for (std::uint64_t i = 0; i < size; ++i) {
      const std::uint64_t value = permutation(i);
      ASSERT_LT(value, size);
      ASSERT_FALSE(seen[value]) << size;
      seen[value] = true;
    }
    EXPECT_THROW(permutation(size), Error);
  }
}

TEST(Permutation, HugeCountsStayInRange) {
  const std::uint64_t count = (std::uint64_t{1} << 62) + 1;
  const Permutation permutation(count, 1, 0);
  std::set<std::uint64_t> seen;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const std::uint64_t value = permutation(count - 1 - i);
    EXPECT_LT(value, count);
    EXPECT_TRUE(seen.insert(value).second);
  }
}

TEST(Permutation, SeedAndEpochChangeTheOrder) {
  constexpr std::uint64_t kCount = 1000;
  const auto order = [](std::uint64_t seed, std::uint64_t epoch) {
    std::vector<std::uint64_t> values(kCount);
    for (std::uint64_t i = 0; i < kCount; ++i) values[i] = Permutation(kCount, seed, epoch)(i);
    return values;
  };
  const auto base = order(1, 0);
  EXPECT_EQ(order(1, 0), base);
  for (const auto& [seed, epoch] :
       {std::pair{1ull, 1ull}, {2ull, 0ull}, {1ull << 32 | 1, 0ull}, {1ull, 1ull << 32}}) {
    const auto other = order(seed, epoch);
    std::uint64_t same = 0;
    for (std::uint64_t i = 0; i < kCount; ++i) same += other[i] == base[i];
    EXPECT_LT(same, 12u) << seed << " " << epoch;  // one is expected
  }
}

// Where an element lands should be uniform: a chi-squared test over 7 places and 7,000 seeds, for each
// element.
TEST(Permutation, IsUniformOverSeeds) {
  constexpr std::uint64_t kCount = 7;
  constexpr std::uint64_t kSeeds = 7000;
  for (std::uint64_t element = 0; element < kCount; ++element) {
    std::vector<double> hits(kCount);
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) hits[Permutation(kCount, seed, 0)(element)] += 1;
    double chi_squared = 0;
    for (const double hit : hits) chi_squared += (hit - 1000) * (hit - 1000) / 1000;
    EXPECT_LT(chi_squared, 22.5) << element;  // 6 degrees of freedom: exceeded once in 1,000
  }
}

TEST(ContributionRange, CutsEveryStepExactly) {
  for (std::uint64_t n = 0; n <= 40; ++n) {
    for (std::uint64_t c = 1; c <= 17; ++c) {
      std::uint64_t next = 0;
      for (std::uint64_t k = 0; k < c; ++k) {
        const SampleRange range = contribution_range(k, n, c);
        EXPECT_EQ(range, (SampleRange{k * n / c, (k + 1) * n / c}));
        EXPECT_EQ(range.begin, next);
        next = range.end;
      }
      EXPECT_EQ(next, n);
      EXPECT_THROW(contribution_range(c, n, c), Error);
    }
  }
  const std::uint64_t huge = ~std::uint64_t{0} - 5;
  EXPECT_EQ(contribution_range(6, huge, 7).end, huge);
}

TEST_F(SamplerTest, EverySampleOnceAnEpochForOddSizes) {
  for (const std::uint32_t count : {6u, 7u, 8u, 11u, 100u, 101u, 1003u}) {
    for (const std::uint64_t step_samples : {1u, 3u, 4u, 50u}) {
      const TokenFile file = counting_file(count);
      constexpr std::uint32_t kContext = 5;
      DistributedSampler sampler(file, {kContext, step_samples, 1, 9});
      ASSERT_EQ(sampler.windows(), (count - 1) / kContext);
      std::vector<std::uint64_t> order;
      while (order.size() < 3 * sampler.windows()) {
        std::vector<std::uint32_t> tokens(step_samples * kContext);
        std::vector<std::int32_t> targets(tokens.size());
        EXPECT_EQ(sampler.fill(0, tokens, targets), targets.size());
        for (std::uint64_t i = 0; i < step_samples; ++i) {
          const std::uint32_t first = tokens[i * kContext];
          EXPECT_EQ(first % kContext, 0u);
          for (std::uint32_t j = 0; j < kContext; ++j) {
            EXPECT_EQ(tokens[i * kContext + j], first + j);
            EXPECT_EQ(targets[i * kContext + j], static_cast<std::int32_t>(first + j + 1));
          }
          EXPECT_EQ(first / kContext, sampler.window_at(sampler.position() + i));
          order.push_back(first / kContext);
        }
        sampler.advance();
      }
      for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
        const auto begin = order.begin() + static_cast<std::ptrdiff_t>(epoch * sampler.windows());
        const std::set<std::uint64_t> seen(begin, begin + static_cast<std::ptrdiff_t>(sampler.windows()));
        EXPECT_EQ(seen.size(), sampler.windows());
      }
    }
  }
}

TEST_F(SamplerTest, ContributionsAreCutsOfTheStep) {
  const TokenFile file = counting_file(1000);
  constexpr std::uint32_t kContext = 7;
  const auto step_of = [&](std::uint64_t contributions, std::uint64_t steps_ahead) {
    const DistributedSampler sampler(file, {kContext, 12, contributions, 3});
    std::vector<std::uint32_t> all;
    for (std::uint64_t k = 0; k < contributions; ++k) {
      std::vector<std::uint32_t> tokens(sampler.contribution_samples(k) * kContext);
      std::vector<std::int32_t> targets(tokens.size());
      sampler.fill(k, tokens, targets, steps_ahead);
      all.insert(all.end(), tokens.begin(), tokens.end());
    }
    return all;
  };
  const auto whole = step_of(1, 0);
  for (const std::uint64_t c : {2u, 3u, 5u, 12u, 13u, 40u}) EXPECT_EQ(step_of(c, 0), whole) << c;
  EXPECT_NE(step_of(1, 1), whole);
  EXPECT_EQ(step_of(5, 1), step_of(1, 1));
}

TEST_F(SamplerTest, ResumesAtTheExactSample) {
  const TokenFile file = counting_file(331);
  constexpr std::uint32_t kContext = 3;
  const SamplerOptions options{kContext, 10, 2, 4};
  const auto take = [&](DistributedSampler& sampler) {
    std::vector<std::uint32_t> tokens(5 * kContext), all;
    std::vector<std::int32_t> targets(tokens.size());
    for (std::uint64_t k = 0; k < 2; ++k) {
      sampler.fill(k, tokens, targets);
      all.insert(all.end(), tokens.begin(), tokens.end());
    }
    sampler.advance();
    return all;
  };
  DistributedSampler undisturbed(file, options);
  for (int step = 0; step < 30; ++step) {  // 110 windows: the epoch turns at step 11 and 22
    DistributedSampler resumed(file, options);
    resumed.restore_state(undisturbed.save_state());
    EXPECT_EQ(resumed.position(), undisturbed.position());
    DistributedSampler copy = undisturbed;
    for (int ahead = 0; ahead < 3; ++ahead) EXPECT_EQ(take(resumed), take(copy));
    take(undisturbed);
  }
  EXPECT_EQ(undisturbed.epoch(), 2u);
  // Another number of samples a step goes on at the same sample.
  DistributedSampler wider(file, {kContext, 25, 5, 4});
  wider.restore_state(undisturbed.save_state());
  EXPECT_EQ(wider.window_at(wider.position()), undisturbed.window_at(undisturbed.position()));
}

TEST_F(SamplerTest, RefusesAStateOfAnotherRun) {
  const TokenFile file = counting_file(100);
  const TokenFile other = counting_file(101, "other");
  const SamplerOptions options{4, 8, 1, 4};
  DistributedSampler sampler(file, options);
  const std::string state = sampler.save_state();
  const auto restore = [&](const TokenFile& tokens, const SamplerOptions& changed, const std::string& json) {
    return [&tokens, changed, json] { DistributedSampler(tokens, changed).restore_state(json); };
  };
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, restore(other, options, state)), HasSubstr("data_"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, restore(file, {5, 8, 1, 4}, state)),
              HasSubstr("the saved run had context = 4; this one has 5"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, restore(file, {4, 8, 1, 5}, state)), HasSubstr("seed"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument,
                       restore(file, {.context = 4, .samples_per_step = 8, .seed = 4, .stride = 2}, state)),
              HasSubstr("the saved run had stride = 4; this one has 2"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, restore(file, {4, 8, 1, 4, false}, state)),
              HasSubstr("shuffle"));
  for (const char* bad :
       {"", "{", "[]", "{}", "{\"position\": -1}", "{\"position\": \"3\"}", "{\"position\": 3}"}) {
    error_of(ErrorCode::corrupt, restore(file, options, bad));
  }
}

TEST_F(SamplerTest, WithoutShuffleTheFileOrder) {
  const TokenFile file = counting_file(50);
  const DistributedSampler sampler(file, {7, 3, 1, 1, false});
  for (std::uint64_t position = 0; position < 20; ++position)
    EXPECT_EQ(sampler.window_at(position), position % 7);
}

TEST_F(SamplerTest, TooShortForOneSampleIsRefusedInWords) {
  const TokenFile file = counting_file(8);
  EXPECT_EQ(DistributedSampler(file, {7, 1, 1, 1}).windows(), 1u);
  EXPECT_THAT(error_of(ErrorCode::invalid_argument,
                       [&] {
                         DistributedSampler(file, {8, 1, 1, 1});
                       }),
              HasSubstr("model.context = 8 needs 9 tokens; got 8"));
  require_vocabulary(file, std::uint64_t{1} << 20);
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { require_vocabulary(file, 256); }),
              HasSubstr("larger than model.vocabulary = 256"));
}

}  // namespace
}  // namespace terrace
