// Epochs, overlapping windows and masked targets, against the slow and obvious order: every epoch's windows
// in a list, taken from its front.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "src/data/permutation.h"
#include "src/data/sampler.h"
#include "tests/data/file_text.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using Windows = std::vector<std::uint64_t>;

struct Shape {
  std::uint32_t tokens = 0;
  std::uint32_t context = 0;
  std::uint32_t stride = 0;
  std::uint64_t batch = 0;
  std::uint64_t contributions = 1;
};

// Every size at which something may go wrong, small enough to take many epochs of each.
std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const std::uint32_t context : {1u, 3u, 16u}) {
    for (const std::uint32_t stride : {0u, 1u, 2u, context, context + 1}) {
      for (const std::uint32_t extra : {1u, 2u, 3u, 17u, 40u, 114u}) {
        for (const std::uint64_t batch : {1u, 2u, 7u, 32u, 200u}) {
          for (const std::uint64_t contributions : {1u, 2u, 3u, 5u})
            all.push_back({context + extra, context, stride, batch, contributions});
        }
      }
    }
  }
  return all;
}

std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << s.tokens << " tokens, context " << s.context << ", stride " << s.stride << ", batch "
             << s.batch << ", " << s.contributions << " contributions";
}

// The steps that follow `taken` samples.
class Oracle {
 public:
  Oracle(const Shape& shape, std::uint64_t seed, LastBatch last) : shape_(shape), seed_(seed), last_(last) {
    const std::uint32_t stride = shape.stride == 0 ? shape.context : shape.stride;
    for (std::uint64_t start = 0; start + shape.context + 1 <= shape.tokens; start += stride) ++windows_;
  }
  std::uint64_t windows() const { return windows_; }

  Windows next() {
    Windows step;
    while (step.size() < shape_.batch) {
      if (at_ == epoch_.size()) {
        if (last_ == LastBatch::short_of_full && !step.empty()) break;
        deal();
      }
      step.push_back(epoch_[at_++]);
    }
    return step;
  }
  void skip(std::uint64_t samples) {
    for (; samples > 0; --samples) {
      if (at_ == epoch_.size()) deal();
      ++at_;
    }
  }

 private:
  void deal() {
    const Permutation order(windows_, seed_, epochs_++);
    epoch_.clear();
    for (std::uint64_t i = 0; i < windows_; ++i) epoch_.push_back(order(i));
    at_ = 0;
  }

  Shape shape_;
  std::uint64_t seed_;
  LastBatch last_;
  std::uint64_t windows_ = 0;
  std::uint64_t epochs_ = 0;
  Windows epoch_;
  std::uint64_t at_ = 0;
};

class SamplerEpochTest : public testing::Test {
 protected:
  // Token i of the file is i: what a sample holds says where it came from.
  const TokenFile& counting_file(std::uint32_t count) {
    auto& file = files_[count];
    if (!file) {
      std::vector<std::uint32_t> tokens(count);
      std::iota(tokens.begin(), tokens.end(), 0u);
      file = std::make_unique<TokenFile>(write(std::to_string(count), tokens));
    }
    return *file;
  }

  std::string write(const std::string& name, const std::vector<std::uint32_t>& tokens) {
    TokenFileWriter writer(folder_.file(name), 4, std::uint64_t{1} << 20);
    writer.append(tokens);
    writer.finish();
    return folder_.file(name);
  }

  DistributedSampler sampler(const Shape& shape, LastBatch last) {
    SamplerOptions options{shape.context, shape.batch, shape.contributions, kSeed};
    options.stride = shape.stride;
    options.last_batch = last;
    return {counting_file(shape.tokens), options};
  }

  // The windows of the step that starts `ahead` steps on, contribution after contribution, every token
  // checked.
  static Windows windows_of(const DistributedSampler& sampler, std::uint64_t ahead = 0) {
    const std::uint64_t context = sampler.options().context;
    const std::uint64_t n = sampler.samples_of_step(ahead);
    const std::uint64_t contributions = sampler.options().contributions;
    Windows out;
    for (std::uint64_t k = 0; k < contributions; ++k) {
      EXPECT_EQ(sampler.contribution_samples(k, ahead), (k + 1) * n / contributions - k * n / contributions);
      std::vector<std::uint32_t> tokens(sampler.contribution_samples(k, ahead) * context);
      std::vector<std::int32_t> targets(tokens.size());
      EXPECT_EQ(sampler.fill(k, tokens, targets, ahead), tokens.size());
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        EXPECT_EQ(tokens[i], tokens[i / context * context] + i % context);
        EXPECT_EQ(targets[i], static_cast<std::int32_t>(tokens[i] + 1));
      }
      for (std::size_t i = 0; i < tokens.size(); i += context) {
        EXPECT_EQ(tokens[i] % sampler.options().stride, 0u);
        out.push_back(tokens[i] / sampler.options().stride);
      }
    }
    EXPECT_EQ(out.size(), n);
    return out;
  }

  static constexpr std::uint64_t kSeed = 9;
  TempDir folder_;
  std::map<std::uint32_t, std::unique_ptr<TokenFile>> files_;
};

TEST_F(SamplerEpochTest, StepsAreTheObviousOnes) {
  for (const LastBatch last : {LastBatch::straddle, LastBatch::short_of_full}) {
    for (const Shape& shape : shapes()) {
      DistributedSampler sampler = this->sampler(shape, last);
      const DistributedSampler start = sampler;
      Oracle oracle(shape, kSeed, last);
      ASSERT_EQ(sampler.windows(), oracle.windows()) << shape;
      std::uint64_t taken = 0;
      for (std::uint64_t step = 0; step < 2 * sampler.steps_per_epoch() + 2; ++step) {
        const Windows want = oracle.next();
        ASSERT_EQ(sampler.position(), taken) << shape;
        ASSERT_EQ(start.position_after(step), taken) << shape;
        ASSERT_EQ(windows_of(sampler), want) << shape << " at step " << step;
        if (step < 3) {
          ASSERT_EQ(windows_of(start, step), want) << shape << " ahead " << step;
        }
        taken += want.size();
        sampler.advance();
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(SamplerEpochTest, ShortStepsTakeEverySampleOnceAnEpochAndNeverMixTwo) {
  for (const Shape& shape : shapes()) {
    DistributedSampler sampler = this->sampler(shape, LastBatch::short_of_full);
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
      Windows seen;
      for (std::uint64_t step = 0; step < sampler.steps_per_epoch(); ++step) {
        ASSERT_EQ(sampler.epoch(), epoch) << shape;
        const Windows windows = windows_of(sampler);
        ASSERT_TRUE(windows.size() == shape.batch || step + 1 == sampler.steps_per_epoch()) << shape;
        seen.insert(seen.end(), windows.begin(), windows.end());
        sampler.advance();
      }
      std::ranges::sort(seen);
      Windows all(sampler.windows());
      std::iota(all.begin(), all.end(), 0u);
      ASSERT_EQ(seen, all) << shape << ", epoch " << epoch;
    }
    ASSERT_EQ(sampler.position(), 3 * sampler.windows());
  }
}

TEST_F(SamplerEpochTest, FewerSamplesThanContributionsLeaveSomeEmpty) {
  // 3 windows in steps of 2: 2, then 1, over 5 contributions.
  DistributedSampler sampler = this->sampler({7, 4, 1, 2, 5}, LastBatch::short_of_full);
  ASSERT_EQ(sampler.windows(), 3u);
  const auto samples = [&] {
    std::vector<std::uint64_t> all;
    for (std::uint64_t k = 0; k < 5; ++k) all.push_back(sampler.contribution_samples(k));
    return all;
  };
  EXPECT_EQ(samples(), (std::vector<std::uint64_t>{0, 0, 1, 0, 1}));
  sampler.advance();
  EXPECT_EQ(samples(), (std::vector<std::uint64_t>{0, 0, 0, 0, 1}));
  EXPECT_EQ(sampler.fill(0, {}, {}), 0u);
}

// From every step of either mode, with the same and with another mode, batch and number of contributions.
TEST_F(SamplerEpochTest, AResumeGoesOnAtTheNextSample) {
  const std::vector<Shape> resumed{
      {60, 5, 2, 8, 2}, {60, 5, 2, 8, 3}, {60, 5, 2, 5, 5}, {60, 5, 2, 100, 1}, {60, 5, 2, 1, 1}};
  for (const LastBatch before : {LastBatch::straddle, LastBatch::short_of_full}) {
    DistributedSampler undisturbed = sampler({60, 5, 2, 8, 2}, before);
    for (int step = 0; step < 25; ++step, undisturbed.advance()) {
      for (const LastBatch after : {LastBatch::straddle, LastBatch::short_of_full}) {
        for (const Shape& shape : resumed) {
          DistributedSampler other = sampler(shape, after);
          other.restore_state(undisturbed.save_state());
          ASSERT_EQ(other.position(), undisturbed.position());
          Oracle oracle(shape, kSeed, after);
          oracle.skip(undisturbed.position());
          const DistributedSampler start = other;
          for (std::uint64_t ahead = 0; ahead < 6; ++ahead) {
            ASSERT_EQ(start.position_after(ahead), other.position());
            ASSERT_EQ(windows_of(other), oracle.next()) << shape << " from step " << step;
            other.advance();
          }
          const std::uint64_t position = other.position();
          const std::string saved = other.save_state();
          other.restore_state(saved);
          ASSERT_EQ(other.position(), position);
        }
      }
    }
  }
}

TEST_F(SamplerEpochTest, AStateWithoutAStrideHadWindowsOfTheContext) {
  DistributedSampler sampler = this->sampler({60, 5, 5, 8, 2}, LastBatch::straddle);
  sampler.advance();
  auto state = nlohmann::json::parse(sampler.save_state());
  state.erase("stride");
  DistributedSampler same = this->sampler({60, 5, 0, 8, 2}, LastBatch::short_of_full);
  same.restore_state(state.dump());
  EXPECT_EQ(same.position(), 8u);
  EXPECT_THAT(error_of(ErrorCode::invalid_argument,
                       [&] {
                         this->sampler({60, 5, 1, 8, 2}, LastBatch::straddle).restore_state(state.dump());
                       }),
              HasSubstr("the saved run had stride = 5; this one has 1"));
}

TEST_F(SamplerEpochTest, IgnoredTargetsAreHandedOnAsNone) {
  const std::vector<std::uint32_t> tokens{4, 7, 7, 0, 3, 7, 1, 7, 7, 7, 7};
  const TokenFile file(write("padded", tokens));
  for (const std::int64_t ignored : {-1, 0, 7, 9}) {
    SamplerOptions options{
        .context = 3, .samples_per_step = 4, .contributions = 2, .shuffle = false, .stride = 2};
    options.ignore_token = ignored;
    const DistributedSampler sampler(file, options);
    ASSERT_EQ(sampler.windows(), 4u);
    for (std::uint64_t k = 0; k < 2; ++k) {
      std::vector<std::uint32_t> in(6);
      std::vector<std::int32_t> targets(6);
      std::uint64_t real = 0;
      const std::uint64_t told = sampler.fill(k, in, targets);
      for (std::size_t i = 0; i < 6; ++i) {
        const std::size_t at = (2 * k + i / 3) * 2 + i % 3;
        EXPECT_EQ(in[i], tokens[at]);
        const bool none = tokens[at + 1] == ignored;
        EXPECT_EQ(targets[i], none ? kNoTarget : static_cast<std::int32_t>(tokens[at + 1]));
        real += none ? 0 : 1;
      }
      EXPECT_EQ(told, real) << ignored;
    }
  }
}

TEST_F(SamplerEpochTest, NamesAndRefusals) {
  EXPECT_EQ(parse_last_batch("straddle"), LastBatch::straddle);
  EXPECT_EQ(parse_last_batch("short"), LastBatch::short_of_full);
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [] { parse_last_batch("drop"); }),
              HasSubstr("'drop'; wanted straddle or short"));
  TokenFileWriter writer(folder_.file("wide"), 4, (std::uint64_t{1} << 31) + 1);
  const std::vector<std::uint32_t> tokens(9, 0);
  writer.append(tokens);
  writer.finish();
  const TokenFile wide(folder_.file("wide"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument,
                       [&] {
                         DistributedSampler(wide, {3, 1});
                       }),
              HasSubstr("vocabulary of 2147483649"));
}

}  // namespace
}  // namespace terrace
