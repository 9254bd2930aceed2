#include "src/plan/closed_form.h"

#include <gtest/gtest.h>

#include "terrace/error.h"

namespace terrace {
namespace {

const Stage kStages[] = {Stage::replicated, Stage::optimizer, Stage::gradients, Stage::parameters};

TEST(ClosedForm, OneRankHoldsSixteenBytesAnElementAndSendsNothing) {
  for (const Stage stage : kStages) {
    EXPECT_EQ(model_state_bytes(stage, 4096, 1), 16u * 4096);
    EXPECT_EQ(sent_numel(stage, 4096, 1, 5), 0u);
  }
}

// 7.5 billion parameters on 64 ranks: 120, 31.4, 16.6 and 1.9 GB, as the ZeRO paper prints them.
TEST(ClosedForm, StatesAreThoseOfThePublishedTable) {
  constexpr std::uint64_t kNumel = 7'500'000'000;
  EXPECT_EQ(model_state_bytes(Stage::replicated, kNumel, 64), 120'000'000'000u);
  EXPECT_NEAR(static_cast<double>(model_state_bytes(Stage::optimizer, kNumel, 64)), 31.4e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(model_state_bytes(Stage::gradients, kNumel, 64)), 16.6e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(model_state_bytes(Stage::parameters, kNumel, 64)), 1.9e9, 0.05e9);
}

// Counted message by message: an owner of P/N of the elements gets one piece from each other rank, and so on.
TEST(ClosedForm, SentElementsAreThoseOfTheMessages) {
  constexpr std::uint64_t kNumel = 16 * 4096;
  for (const std::uint64_t ranks : {1u, 2u, 4u, 8u, 16u}) {
    for (const std::uint64_t m : {1u, 2u, 3u}) {
      std::uint64_t exchange = 0;  // a rank sends every other owner its slice
      for (std::uint64_t other = 1; other < ranks; ++other) exchange += kNumel / ranks;
      const std::uint64_t gather = exchange;  // a rank sends its slice to every other rank
      for (const Stage stage : {Stage::replicated, Stage::optimizer, Stage::gradients}) {
        EXPECT_EQ(sent_numel(stage, kNumel, ranks, m), m * exchange + gather);
      }
      EXPECT_EQ(sent_numel(Stage::parameters, kNumel, ranks, m), m * exchange + 2 * m * gather);
    }
  }
}

TEST(ClosedForm, HybridIsStageThreeWithOneReplicaAndStageZeroWithOneShard) {
  constexpr std::uint64_t kNumel = 32 * 4096;
  for (const std::uint64_t ranks : {1u, 2u, 4u, 8u}) {
    EXPECT_EQ(hybrid_state_bytes(kNumel, ranks), model_state_bytes(Stage::parameters, kNumel, ranks));
    EXPECT_EQ(hybrid_state_bytes(kNumel, 1), model_state_bytes(Stage::replicated, kNumel, ranks));
    for (const std::uint64_t m : {1u, 2u, 7u}) {
      EXPECT_EQ(hybrid_sent_numel(kNumel, ranks, 1, m), sent_numel(Stage::parameters, kNumel, ranks, m));
      EXPECT_EQ(hybrid_sent_numel(kNumel, 1, ranks, m), sent_numel(Stage::replicated, kNumel, ranks, m));
    }
  }
}

TEST(ClosedForm, SumsMadeBeforeTheFoldSendLess) {
  // Once a step, whatever M is.
  for (const std::uint64_t m : {1u, 2u, 7u})
    EXPECT_EQ(sent_numel(Stage::optimizer, 400, 4, m, Reduction::last), 2u * 300);
  EXPECT_EQ(sent_numel(Stage::gradients, 400, 4, 3, Reduction::grouped), 4u * 300);
  // 2 shards x 2 replicas, 2 contributions each: P/2 within the replica, P/4 of sums to the other one.
  EXPECT_EQ(hybrid_sent_numel(400, 2, 2, 2, Reduction::hierarchical), 2u * (200 + 100) + 100 + 4 * 200);
}

TEST(ClosedForm, HybridInBetween) {
  // 2 shards x 2 replicas, 2 contributions each: 3/4 of P to owners each, P/4 to the other replica, P/2 twice
  // each.
  EXPECT_EQ(hybrid_sent_numel(400, 2, 2, 2), 2u * 300 + 100 + 4 * 200);
  EXPECT_EQ(hybrid_state_bytes(400, 2), 3200u);
}

// Gathered twice for each contribution, or once: a rank sends its part to the others of its group.
TEST(ClosedForm, KeptWholeIsStoredByAllAndGatheredOnce) {
  for (const std::uint64_t shards : {1u, 2u, 4u, 8u}) {
    for (const std::uint64_t m : {1u, 2u, 7u}) {
      std::uint64_t gather = 0, foreign = 0;
      for (std::uint64_t other = 1; other < shards; ++other) {
        gather += 800 / shards;
        foreign += 800 / shards;
      }
      EXPECT_EQ(kept_whole_unsent_numel(800, shards, m), 2 * m * gather - gather);
      EXPECT_EQ(kept_whole_bytes(800, shards), 2 * foreign);
      // All of it kept whole: parameters and what is sent are stage 2's.
      EXPECT_EQ(model_state_bytes(Stage::parameters, 800, shards) + kept_whole_bytes(800, shards),
                model_state_bytes(Stage::gradients, 800, shards));
      EXPECT_EQ(sent_numel(Stage::parameters, 800, shards, m) - kept_whole_unsent_numel(800, shards, m),
                sent_numel(Stage::gradients, 800, shards, m));
    }
  }
}

TEST(ClosedForm, RefusesWhatCannotBeCut) {
  EXPECT_THROW(model_state_bytes(Stage::optimizer, 10, 3), Error);
  EXPECT_THROW(sent_numel(Stage::parameters, 10, 0, 1), Error);
  EXPECT_THROW(hybrid_sent_numel(12, 4, 2, 1), Error);
  EXPECT_THROW(hybrid_state_bytes(12, 5), Error);
  EXPECT_THROW(kept_whole_bytes(12, 5), Error);
  EXPECT_THROW(kept_whole_unsent_numel(12, 0, 1), Error);
}

TEST(ClosedForm, OptimizerTraffic) {
  EXPECT_EQ(optimizer_read_bytes(100), 1200u);
  EXPECT_EQ(optimizer_write_bytes(100, false), 1200u);
  EXPECT_EQ(optimizer_write_bytes(100, true), 1400u);
}

StepCosts three_pieces() {
  StepCosts costs;
  costs.forward_s = {1, 2, 3};
  costs.backward_s = {2, 4, 6};
  costs.state_bytes = {10, 20, 30};
  costs.disk_bytes_per_s = 10;
  costs.contributions = 2;
  return costs;
}

TEST(StepBound, WithoutStatesOnDiskItIsTheComputeOfAllContributions) {
  StepCosts costs = three_pieces();
  costs.state_slot_bytes = 60;  // all states fit in memory
  EXPECT_DOUBLE_EQ(step_bound_with_verdict_s(costs), 2 * (6 + 12));
  EXPECT_DOUBLE_EQ(step_bound_without_verdict_s(costs), 2 * (6 + 12));
  costs.busiest_lane_s = 50;
  EXPECT_DOUBLE_EQ(step_bound_with_verdict_s(costs), 50);
  EXPECT_DOUBLE_EQ(step_bound_without_verdict_s(costs), 50);
}

TEST(StepBound, WithAVerdictForwardWaitsForTheUpdatesBeforeIt) {
  // i = 1: t(2*10) + 6 = 8; i = 2: t(2*30) + 5 = 11; i = 3: t(2*60) + 3 = 15.
  EXPECT_DOUBLE_EQ(step_bound_with_verdict_s(three_pieces()), 2 * 12 + 6 + 15);
  StepCosts costs = three_pieces();
  costs.state_slot_bytes = 25;  // 6; t(2*5) + 5 = 6; t(2*35) + 3 = 10
  EXPECT_DOUBLE_EQ(step_bound_with_verdict_s(costs), 2 * 12 + 6 + 10);
}

TEST(StepBound, WithoutAVerdictUpdatesFollowBackward) {
  // i = 3: 6 + t(2*60) = 18; i = 2: 10 + t(2*30) = 16; i = 1: 12 + t(2*10) = 14.
  EXPECT_DOUBLE_EQ(step_bound_without_verdict_s(three_pieces()), 2 * 6 + 12 + 18);
}

TEST(StepBound, TellsItsParts) {
  const BoundParts verdict = bound_parts_with_verdict(three_pieces());
  EXPECT_DOUBLE_EQ(verdict.closed_s, 2 * 12 + 6);
  EXPECT_DOUBLE_EQ(verdict.open_s, 15);
  EXPECT_EQ(verdict.piece, 2u);
  EXPECT_DOUBLE_EQ(verdict.piece_disk_s, 12);
  EXPECT_FALSE(verdict.closed_by_disk);
  EXPECT_FALSE(verdict.by_busiest_lane);
  StepCosts costs = three_pieces();
  costs.busiest_lane_s = 46;
  EXPECT_TRUE(bound_parts_with_verdict(costs).by_busiest_lane);
  const BoundParts backward = bound_parts_without_verdict(three_pieces());
  EXPECT_EQ(backward.piece, 2u);
  EXPECT_DOUBLE_EQ(backward.piece_disk_s, 12);
  EXPECT_DOUBLE_EQ(backward.closed_s, 2 * 6 + 12);
}

TEST(StepBound, OtherTrafficIsAddedWhereItMustMove) {
  StepCosts costs = three_pieces();
  costs.other_disk_s = {4, 2, 0.5};
  // 2 + 4 + 6 = 12; 6 + 6 + 5 = 17; 12 + 6.5 + 3 = 21.5.
  EXPECT_DOUBLE_EQ(step_bound_with_verdict_s(costs), 2 * 12 + 6 + 21.5);
  costs.other_disk_s = {10, 0, 0};
  costs.state_slot_bytes = 60;  // t(0) + 10 + 6 = 16
  EXPECT_EQ(bound_parts_with_verdict(costs).piece, 0u);
  EXPECT_DOUBLE_EQ(step_bound_with_verdict_s(costs), 2 * 12 + 6 + 16);
  // After the last unit's backward 6 + 10, after the first's 12 + 10.
  EXPECT_DOUBLE_EQ(step_bound_without_verdict_s(costs), 2 * 6 + 12 + 22);
  costs.other_disk_s = {1, 0, 10};  // 6 + 11; 10 + 1; 12 + 1
  EXPECT_DOUBLE_EQ(step_bound_without_verdict_s(costs), 2 * 6 + 12 + 17);
  costs.closed_disk_s = 29;  // as long as compute with a verdict; longer without
  EXPECT_FALSE(bound_parts_with_verdict(costs).closed_by_disk);
  EXPECT_TRUE(bound_parts_without_verdict(costs).closed_by_disk);
  EXPECT_DOUBLE_EQ(step_bound_without_verdict_s(costs), 29 + 17);
  costs.other_disk_s = {1, 2};
  EXPECT_THROW(step_bound_with_verdict_s(costs), Error);
}

TEST(StepBound, RefusesVectorsOfDifferentLengths) {
  StepCosts costs = three_pieces();
  costs.state_bytes.pop_back();
  EXPECT_THROW(step_bound_with_verdict_s(costs), Error);
  EXPECT_THROW(step_bound_without_verdict_s(costs), Error);
}

}  // namespace
}  // namespace terrace
