// What is said of each rank is counted from the sampler and from the traffic.
#include "src/train/rank_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "src/data/token_file.h"
#include "tests/support/temp_dir.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class RankReportTest : public testing::Test {
 protected:
  TokenFile file_of(std::uint32_t count) {
    TokenFileWriter writer(folder_.file("t"), 1, 16);
    std::vector<std::uint32_t> tokens(count);
    writer.append(tokens);
    writer.finish();
    return TokenFile(folder_.file("t"));
  }

  TempDir folder_;
};

TEST_F(RankReportTest, CountsTheFirstWholeEpochAndAveragesTheLastOne) {
  const TokenFile tokens = file_of(15);  // 11 windows of 4 + 1 tokens
  SamplerOptions options{4, 6, 3, 1};
  options.stride = 1;
  options.last_batch = LastBatch::short_of_full;  // steps of 6 and 5 windows; 2 + 2 + 2 and 1 + 2 + 2
  DistributedSampler sampler(tokens, options);
  RankReport report(2);
  ModelShape model;
  UnitShape unit;
  unit.tensors.push_back({"w", 5000});
  model.units.push_back(unit);
  model.grad_dtype = DType::f32;
  EXPECT_EQ(report.text(sampler, model), "");
  CommunicatorStats::Traffic sent;
  for (std::uint64_t number = 1; number <= 4; ++number) {
    report.take(sampler);
    StepReport step;
    step.step = number;
    step.rank_losses = {static_cast<double>(number), 10.0 * static_cast<double>(number)};
    CommunicatorStats::Traffic after = sent;
    after.calls += 3;
    after.sent_bytes += 40000;
    const std::vector<std::uint64_t> targets{number == 3 ? 6u : 2u, 8};
    report.add(step, targets, sent, after);
    sent = after;
    sent.sent_bytes += 77;  // between steps: not theirs
    sampler.advance();
    if (number == 1) {
      EXPECT_THAT(report.text(sampler, model), HasSubstr("epoch 1 so far: 11 windows of 5 tokens, taken by "
                                                         "rank 0 4, rank 1 2\n"));
    }
  }
  const std::string text = report.text(sampler, model);
  EXPECT_THAT(text, HasSubstr("2 ranks; epoch 1: 11 windows of 5 tokens, taken by rank 0 7, rank 1 4\n"));
  EXPECT_THAT(text, HasSubstr("own targets, step 1: rank 0 1.0000, rank 1 10.0000\n"));
  EXPECT_THAT(text, HasSubstr("own targets, step 4: rank 0 4.0000, rank 1 40.0000\n"));
  EXPECT_THAT(text, HasSubstr("own targets, epoch 2 up to there: rank 0 3.2500, rank 1 35.0000\n"));
  EXPECT_THAT(text, HasSubstr("sent by rank 0: 160000 bytes in 12 collectives; a step 40000 bytes in 3.0\n"));
  EXPECT_THAT(text,
              HasSubstr("2.000 elements of 4 bytes for each of 5000 parameters, 1.221 with their padding "
                        "to 8192; a ring all-reduce sends 1.000\n"));
  EXPECT_EQ(RankReport(1).text(sampler, model), "");
}

// A step of fewer samples than ranks leaves some without any.
TEST_F(RankReportTest, SaysThatARankHadNoTargets) {
  const TokenFile tokens = file_of(15);
  DistributedSampler sampler(tokens, {4, 1, 1, 1});
  RankReport report(2);
  ModelShape model;
  model.units.emplace_back().tensors.push_back({"w", 5000});
  report.take(sampler);
  StepReport step;
  step.step = 1;
  step.rank_losses = {2.5, std::nan("")};
  report.add(step, std::vector<std::uint64_t>{4, 0}, {}, {});
  const std::string text = report.text(sampler, model);
  EXPECT_THAT(text, HasSubstr("own targets, step 1: rank 0 2.5000, rank 1 without targets\n"));
  EXPECT_THAT(text, HasSubstr("own targets, epoch 1 up to there: rank 0 2.5000, rank 1 without targets\n"));
}

}  // namespace
}  // namespace terrace
