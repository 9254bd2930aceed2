#include "src/plan/op_times.h"

#include <gtest/gtest.h>

#include "terrace/error.h"
#include "tests/plan/costed_models.h"

namespace terrace {
namespace {

using namespace testing_models;

class ShortestTimesTest : public testing::Test {
 protected:
  ShortestTimesTest() : request_(on_disk(UpdateTime::next_forward, 4 * kMiB)), plan_(make_plan(request_)) {}

  const StepProgram& program(ProgramKind kind) const { return plan_.program(kind); }
  // Every operation of a program takes `us`, one after the other; predicated ones are left out on demand.
  std::vector<OpTime> run(ProgramKind kind, double us, bool pending = true) const {
    std::vector<OpTime> times;
    double now = 0;
    for (const Op& op : program(kind).ops) {
      const bool ran = pending || !op.predicated;
      times.push_back(ran ? OpTime{now, now + us} : OpTime{});
      if (ran) now += us;
    }
    return times;
  }

  PlanRequest request_;
  Plan plan_;
};

TEST_F(ShortestTimesTest, KeepsTheShortestOfEachOperation) {
  ShortestTimes times(plan_);
  times.add(ProgramKind::train, run(ProgramKind::train, 5));
  std::vector<OpTime> second = run(ProgramKind::train, 7);
  second[3].end_us = second[3].start_us + 2;
  times.add(ProgramKind::train, second);
  const std::vector<double> shortest = times.op_times_us(ProgramKind::train);
  ASSERT_EQ(shortest.size(), program(ProgramKind::train).ops.size());
  for (std::size_t i = 0; i < shortest.size(); ++i) {
    EXPECT_NEAR(shortest[i], i == 3 ? 2 : 5, 1e-9) << i;
  }
}

// An update that ran alone, in a drain, is shorter than beside a forward.
TEST_F(ShortestTimesTest, TheSameWorkOfAnotherProgramCounts) {
  ShortestTimes times(plan_);
  times.add(ProgramKind::train, run(ProgramKind::train, 5));
  times.add(ProgramKind::drain, run(ProgramKind::drain, 3));
  const std::vector<double> shortest = times.op_times_us(ProgramKind::train);
  std::size_t updates = 0;
  for (std::size_t i = 0; i < shortest.size(); ++i) {
    const Op& op = program(ProgramKind::train).ops[i];
    if (op.kind == OpKind::update) {
      ++updates;
      EXPECT_NEAR(shortest[i], 3, 1e-9);
    } else if (op.lane == Lane::compute) {
      EXPECT_NEAR(shortest[i], 5, 1e-9);
    }
  }
  EXPECT_EQ(updates, plan_.chunks.size());
}

// A step with nothing pending updates nothing: its zeros are no times.
TEST_F(ShortestTimesTest, WhatDidNotRunIsNoTime) {
  ShortestTimes times(plan_);
  times.add(ProgramKind::train, run(ProgramKind::train, 4, false));
  const std::vector<double> shortest = times.op_times_us(ProgramKind::train);
  for (std::size_t i = 0; i < shortest.size(); ++i) {
    const Op& op = program(ProgramKind::train).ops[i];
    if (!op.predicated) {
      EXPECT_NEAR(shortest[i], 4, 1e-9);
    } else if (op.kind == OpKind::update) {
      EXPECT_GT(shortest[i], 0);  // as the lane's other work, by bytes
    }
  }
  EXPECT_THROW(times.add(ProgramKind::train, {OpTime{}}), Error);
}

TEST_F(ShortestTimesTest, TimesOfTheRatesGiveTheirTimeline) {
  const StepProgram& train = program(ProgramKind::train);
  MachineProfile machine = machine_of();
  machine.at(Lane::nvme).latency_us = 3;
  machine.checksum_gbps = 10;
  machine.share({Lane::compute, Lane::optimizer});
  std::vector<double> op_us = op_times_us(train, machine);
  const Timeline wanted = simulate(train, machine);
  const Timeline timeline = simulate_times(train, op_us, machine);
  EXPECT_NEAR(timeline.step_us, wanted.step_us, 1e-6);
  EXPECT_NEAR(timeline.busiest_resource_us, wanted.busiest_resource_us, 1e-6);
  for (std::size_t i = 0; i < train.ops.size(); ++i)
    EXPECT_NEAR(timeline.ops[i].start_us, wanted.ops[i].start_us, 1e-6) << i;
  op_us[train.ops.size() - 1] += 10;
  EXPECT_NEAR(simulate_times(train, op_us, machine).ops.back().end_us, wanted.ops.back().end_us + 10, 1e-6);
  op_us.pop_back();
  EXPECT_THROW(simulate_times(train, op_us, machine), Error);
}

}  // namespace
}  // namespace terrace
