#include "src/train/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/fmt/fmt.h>

#include <cstring>

#include "src/base/aligned_memory.h"
#include "src/base/units.h"
#include "tests/support/temp_dir.h"
#include "tests/train/made_steps.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;

class ReportTest : public testing::Test {
 protected:
  explicit ReportTest(bool on_disk = true) : request_(made_request(on_disk)), plan_(make_plan(request_)) {
    EXPECT_TRUE(plan_.fits);
  }

  StepOutcome step(double slower = 1) const { return made_outcome(plan_, ProgramKind::train, true, slower); }
  StepOutcome first() const { return made_outcome(plan_, ProgramKind::train, false); }
  std::uint64_t moved(bool written) const {
    std::uint64_t bytes = 0;
    for (const Op& op : plan_.program(ProgramKind::train).ops) {
      if ((op.lane == Lane::nvme || op.lane == Lane::store) && writes_nvme(op.kind) == written)
        bytes += op.bytes;
    }
    return bytes;
  }

  PlanRequest request_;
  Plan plan_;
  PeakMemory memory_;
};

class ReportInMemoryTest : public ReportTest {
 protected:
  ReportInMemoryTest() : ReportTest(false) {}
};

TEST_F(ReportTest, AStepStandsBesideItsPredictionAndItsBound) {
  RunTotals totals(request_.model, plan_, memory_);
  totals.add(first());
  for (int i = 0; i < 4; ++i) totals.add(step());
  totals.finish({});
  const auto ratio = totals.step_over_bound();
  ASSERT_TRUE(ratio);
  EXPECT_GE(*ratio, 1 - 1e-9);  // made by the simulator
  EXPECT_LT(*ratio, 2);
  const std::string text = totals.text(123 * kMiB);
  EXPECT_THAT(text, HasSubstr("5 steps, "));
  EXPECT_THAT(text, HasSubstr("\na step: measured "));
  EXPECT_THAT(text, HasSubstr(" (median of 4), predicted "));
  EXPECT_THAT(text, HasSubstr(fmt::format("{:.2f} times its bound, which is ", *ratio)));
  EXPECT_THAT(text, HasSubstr("GFLOP/s"));
  EXPECT_THAT(text, HasSubstr("123 MiB page-locked"));
  EXPECT_THAT(text, HasSubstr("of " + format_bytes(request_.budget_bytes[1])));
  EXPECT_THAT(text, HasSubstr("\nwritten to the disk: " +
                              format_bytes(4 * moved(true) + (first().lanes[4].bytes - moved(false)))));
}

// Slower by half, the ratio stays: all of it is slower. One slow step in five is not the median.
TEST_F(ReportInMemoryTest, TheMedianIsOverTheShortestTimes) {
  double usual = 0;
  {
    RunTotals totals(request_.model, plan_, memory_);
    for (int i = 0; i < 5; ++i) totals.add(step(1.5));
    totals.finish({});
    usual = totals.step_over_bound().value();
  }
  for (const bool slow : {false, true}) {
    RunTotals totals(request_.model, plan_, memory_);
    totals.add(step(1));
    for (int i = 0; i < (slow ? 3 : 1); ++i) totals.add(step(2));
    totals.add(step(1));
    totals.finish({});
    EXPECT_NEAR(totals.step_over_bound().value(), usual * (slow ? 2 : 1), 0.01 * usual);
  }
}

TEST_F(ReportInMemoryTest, AnEvenNumberOfStepsHasAMeanMedian) {
  RunTotals one(request_.model, plan_, memory_), two(request_.model, plan_, memory_);
  one.add(step(1));
  two.add(step(1));
  two.add(step(2));
  one.finish({});
  two.finish({});
  EXPECT_NEAR(two.step_over_bound().value(), 1.5 * one.step_over_bound().value(), 1e-6);
}

TEST_F(ReportTest, StepsWithNothingPendingAreNoMeasure) {
  RunTotals totals(request_.model, plan_, memory_);
  for (int i = 0; i < 3; ++i) totals.add(first());
  totals.finish({});
  EXPECT_FALSE(totals.step_over_bound());
  EXPECT_THAT(totals.text(0), HasSubstr("bound is not known"));
}

TEST_F(ReportTest, WithoutAStepThereIsStillAReport) {
  RunTotals totals(request_.model, plan_, memory_);
  totals.finish({});
  EXPECT_FALSE(totals.step_over_bound());
  EXPECT_THAT(totals.text(0), HasSubstr("0 steps"));
  EXPECT_THAT(totals.text(0), Not(HasSubstr("written")));
}

TEST_F(ReportTest, TheKindOfMostStepsIsMeasured) {
  RunTotals totals(request_.model, plan_, memory_);
  for (int i = 0; i < 3; ++i) totals.add(made_outcome(plan_, ProgramKind::train_commit));
  totals.add(step(100));
  totals.add(step(100));
  totals.add(made_outcome(plan_, ProgramKind::drain));
  totals.finish({});
  EXPECT_LT(totals.step_over_bound().value(), 2);
  EXPECT_THAT(totals.text(0), HasSubstr("a step, with its commit: measured"));
  EXPECT_THAT(totals.text(0), HasSubstr("(median of 3)"));
  EXPECT_THAT(totals.text(0), HasSubstr("5 steps and 1 programs between them"));
}

// Without a verdict, and with all in memory, nothing is pending: the first step counts like the others.
TEST(Report, WhereNothingIsEverPendingEveryStepCounts) {
  const PlanRequest request = made_request(false, UpdateTime::backward);
  const Plan plan = make_plan(request);
  PeakMemory memory;
  RunTotals totals(request.model, plan, memory);
  totals.add(made_outcome(plan, ProgramKind::train, false));
  totals.finish({});
  EXPECT_TRUE(totals.step_over_bound());
  EXPECT_THAT(totals.text(0), Not(HasSubstr("the disk")));
}

TEST_F(ReportTest, ALongRunKeepsTheLastThousandSteps) {
  RunTotals totals(request_.model, plan_, memory_);
  for (int i = 0; i < 900; ++i) totals.add(step(3));
  for (int i = 0; i < 900; ++i) totals.add(step(1));
  totals.finish({});
  EXPECT_LT(totals.step_over_bound().value(), 2);
  EXPECT_THAT(totals.text(0), HasSubstr("(median of 1800)"));
}

// A run of little traffic is not worth a probe: the rate that its own transfers reached is taken.
TEST_F(ReportTest, TheDiskIsMeasuredOnlyWhereTheRunMovedMuch) {
  const TempDir folder;
  RunTotals little(request_.model, plan_, memory_);
  little.add(step());
  little.finish({{folder.path()}, kGiB});
  EXPECT_THAT(little.text(0), HasSubstr("the disk: not measured, the run moved "));
  EXPECT_THAT(little.text(0), HasSubstr("taken as the 4.00 GB/s at which"));

  StepOutcome outcome = step();
  outcome.lanes[static_cast<std::size_t>(Lane::nvme)].bytes = kLeastTrafficToProbe;
  RunTotals much(request_.model, plan_, memory_);
  much.add(outcome);
  much.finish({{folder.path()}, 16 * kMiB});
  EXPECT_THAT(much.text(0), HasSubstr("GB/s read, "));
  EXPECT_THAT(much.text(0), HasSubstr("on 16 MiB"));
  EXPECT_TRUE(much.step_over_bound());

  RunTotals full(request_.model, plan_, memory_);
  full.add(outcome);
  full.finish({{folder.path()}, 7 * kMiB});
  EXPECT_THAT(full.text(0), HasSubstr("not measured, the budget leaves no room for it"));

  RunTotals gone(request_.model, plan_, memory_);
  gone.add(outcome);
  gone.finish({{folder.file("gone")}, kGiB});
  EXPECT_THAT(gone.text(0), HasSubstr("not measured, cannot create"));
  EXPECT_THAT(gone.text(0), HasSubstr("gone"));
  EXPECT_TRUE(gone.step_over_bound());
}

TEST_F(ReportTest, TheRoomForAProbeIsWhatTheBudgetLeaves) {
  Config config;
  config.tiers.nvme = {{"/a", kGiB}, {"/b", kGiB}};
  const ProbeRoom room = probe_room(config, plan_);
  EXPECT_THAT(room.folders, testing::ElementsAre("/a", "/b"));
  EXPECT_EQ(room.bytes, request_.budget_bytes[2] - plan_.ledger.total(Tier::nvme));
  config.tiers.nvme.clear();
  config.store.path = "/store";
  EXPECT_THAT(probe_room(config, plan_).folders, testing::ElementsAre("/store"));
}

TEST_F(ReportTest, PeaksAreOfTheTiersAndOfTheProcess) {
  RunTotals totals(request_.model, plan_, memory_);
  memory_.sample();
  const std::uint64_t before = totals.peak_bytes(0).at("resident_bytes");
  EXPECT_GT(before, 0u);
  {
    AlignedMemory held(200 * kMiB, "test");
    std::memset(held.data(), 1, held.size());
    totals.add(step());
  }
  totals.add(step());
  const auto peak = totals.peak_bytes(77);
  EXPECT_GE(peak.at("resident_bytes"), before + 150 * kMiB);
  EXPECT_EQ(peak.at("locked_bytes"), 77u);
  EXPECT_EQ(peak.at("ledger_bytes"), peak.at("device_bytes") + peak.at("host_bytes"));
  EXPECT_EQ(peak.at("nvme_bytes"), plan_.ledger.total(Tier::nvme));
}

}  // namespace
}  // namespace terrace
