#include "src/plan/simulate.h"

#include <gtest/gtest.h>

#include <random>

#include "terrace/error.h"
#include "tests/plan/program_builder.h"

namespace terrace {
namespace {

// 1 GB/s is 1000 bytes a microsecond.
MachineProfile machine() {
  MachineProfile profile;
  profile.at(Lane::compute).gflops = 1;  // 1000 flops a microsecond
  profile.at(Lane::h2d).gbps = 1;
  profile.at(Lane::d2h).gbps = 2;
  profile.at(Lane::nvme) = {1, 2, 0, 0};
  profile.at(Lane::optimizer).gbps = 10;
  return profile;
}

class Steps {
 public:
  OpId op(OpKind kind, Lane lane, double us, std::vector<OpId> waits = {}) {
    Op made;
    made.kind = kind;
    made.lane = lane;
    made.waits = std::move(waits);
    if (lane == Lane::compute) {
      made.flops = us * 1000;
    } else {
      made.bytes = static_cast<std::uint64_t>(us * 1000 *
                                              (lane == Lane::d2h ? 2 : (lane == Lane::optimizer ? 10 : 1)));
    }
    return builder_.add(made);
  }
  const StepProgram& program() const { return builder_.program; }

 private:
  ProgramBuilder builder_;
};

void expect_time(const Timeline& timeline, OpId op, double start, double end) {
  EXPECT_DOUBLE_EQ(timeline.ops[op].start_us, start) << op;
  EXPECT_DOUBLE_EQ(timeline.ops[op].end_us, end) << op;
}

TEST(Simulate, AnEmptyProgramTakesNoTime) {
  const Timeline timeline = simulate(StepProgram{}, machine());
  EXPECT_EQ(timeline.step_us, 0);
  EXPECT_EQ(timeline.busiest_resource_us, 0);
}

TEST(Simulate, LanesRunSideBySideAndWaitForEachOther) {
  Steps steps;
  const OpId copy0 = steps.op(OpKind::copy_to_device, Lane::h2d, 10);
  const OpId forward0 = steps.op(OpKind::forward, Lane::compute, 7, {copy0});
  const OpId copy1 = steps.op(OpKind::copy_to_device, Lane::h2d, 10);
  const OpId forward1 = steps.op(OpKind::forward, Lane::compute, 7, {copy1});
  const OpId out = steps.op(OpKind::copy_to_host, Lane::d2h, 3, {forward0});
  const Timeline timeline = simulate(steps.program(), machine());
  expect_time(timeline, copy0, 0, 10);
  expect_time(timeline, forward0, 10, 17);
  expect_time(timeline, copy1, 10, 20);
  expect_time(timeline, forward1, 20, 27);
  expect_time(timeline, out, 17, 20);
  EXPECT_DOUBLE_EQ(timeline.step_us, 27);
  EXPECT_DOUBLE_EQ(timeline.lane_busy_us[static_cast<std::size_t>(Lane::h2d)], 20);
  EXPECT_DOUBLE_EQ(timeline.lane_busy_us[static_cast<std::size_t>(Lane::compute)], 14);
  EXPECT_EQ(timeline.busiest_lane, Lane::h2d);
  EXPECT_DOUBLE_EQ(timeline.busiest_resource_us, 20);
}

TEST(Simulate, ALaneKeepsListOrderEvenWhenALaterOperationIsReady) {
  Steps steps;
  const OpId slow = steps.op(OpKind::forward, Lane::compute, 50);
  const OpId blocked = steps.op(OpKind::copy_to_host, Lane::d2h, 5, {slow});
  const OpId behind = steps.op(OpKind::copy_to_host, Lane::d2h, 5);
  const Timeline timeline = simulate(steps.program(), machine());
  expect_time(timeline, blocked, 50, 55);
  expect_time(timeline, behind, 55, 60);
}

TEST(Simulate, LatencyKeepsALaneBusyButOverlapsOnNvme) {
  MachineProfile profile = machine();
  profile.at(Lane::h2d).latency_us = 4;
  profile.at(Lane::nvme).latency_us = 100;
  Steps steps;
  const OpId copy0 = steps.op(OpKind::copy_to_device, Lane::h2d, 1);
  const OpId copy1 = steps.op(OpKind::copy_to_device, Lane::h2d, 1);
  const OpId read0 = steps.op(OpKind::read_state, Lane::nvme, 10);
  const OpId read1 = steps.op(OpKind::read_state, Lane::nvme, 10);
  const OpId write = steps.op(OpKind::write_state, Lane::nvme, 10);  // twice as fast
  const OpId after = steps.op(OpKind::read_state, Lane::nvme, 0, {read0});
  const Timeline timeline = simulate(steps.program(), profile);
  expect_time(timeline, copy0, 0, 5);
  expect_time(timeline, copy1, 5, 10);
  expect_time(timeline, read0, 0, 110);
  expect_time(timeline, read1, 10, 120);
  expect_time(timeline, write, 20, 125);
  expect_time(timeline, after, 110, 210);
  EXPECT_DOUBLE_EQ(timeline.lane_busy_us[static_cast<std::size_t>(Lane::nvme)], 25);
}

TEST(Simulate, TheLongerOfBytesAndFlopsCounts) {
  MachineProfile profile = machine();
  profile.at(Lane::compute).gbps = 1;
  Op op;
  op.kind = OpKind::forward;
  op.lane = Lane::compute;
  op.flops = 8000;
  op.bytes = 3000;
  EXPECT_DOUBLE_EQ(op_busy_us(op, profile), 8);
  op.bytes = 9000;
  EXPECT_DOUBLE_EQ(op_busy_us(op, profile), 9);
  profile.at(Lane::compute) = {};
  EXPECT_DOUBLE_EQ(op_busy_us(op, profile), 0);
}

TEST(Simulate, LanesThatShareCoresTakeTurns) {
  Steps steps;
  const OpId forward0 = steps.op(OpKind::forward, Lane::compute, 10);
  const OpId update = steps.op(OpKind::update, Lane::optimizer, 6);
  const OpId forward1 = steps.op(OpKind::forward, Lane::compute, 10);
  MachineProfile profile = machine();
  EXPECT_DOUBLE_EQ(simulate(steps.program(), profile).step_us, 20);
  profile.share({Lane::compute, Lane::optimizer});
  const Timeline timeline = simulate(steps.program(), profile);
  expect_time(timeline, forward0, 0, 10);
  expect_time(timeline, update, 10, 16);
  expect_time(timeline, forward1, 16, 26);
  EXPECT_EQ(timeline.busiest_lane, Lane::compute);
  EXPECT_DOUBLE_EQ(timeline.busiest_resource_us, 26);
}

// The shared resource serves what can start first, not what stands first in the list.
TEST(Simulate, ASharedResourceDoesNotIdleForAnEarlierOperationThatWaits) {
  Steps steps;
  const OpId copy = steps.op(OpKind::copy_to_device, Lane::h2d, 30);
  const OpId forward = steps.op(OpKind::forward, Lane::compute, 10, {copy});
  const OpId update = steps.op(OpKind::update, Lane::optimizer, 8);
  MachineProfile profile = machine();
  profile.share({Lane::optimizer, Lane::compute});
  const Timeline timeline = simulate(steps.program(), profile);
  expect_time(timeline, update, 0, 8);
  expect_time(timeline, forward, 30, 40);
}

TEST(Simulate, ChecksumsCountForTheCores) {
  Steps steps;
  steps.op(OpKind::read_state, Lane::nvme, 10);  // 10,000 bytes
  MachineProfile profile = machine();
  profile.checksum_gbps = 0.5;
  const Timeline timeline = simulate(steps.program(), profile);
  EXPECT_DOUBLE_EQ(timeline.resource_busy_us[static_cast<std::size_t>(Lane::optimizer)], 20);
  EXPECT_DOUBLE_EQ(timeline.busiest_resource_us, 20);
  EXPECT_EQ(timeline.busiest_lane, Lane::nvme);
}

TEST(Simulate, RefusesBadProfilesAndPrograms) {
  MachineProfile profile = machine();
  profile.at(Lane::h2d).gbps = -1;
  EXPECT_THROW(simulate(StepProgram{}, profile), Error);
  profile = machine();
  profile.resource[2] = kLanes;
  EXPECT_THROW(simulate(StepProgram{}, profile), Error);
  Steps steps;
  steps.op(OpKind::forward, Lane::compute, 1, {0});
  EXPECT_THROW(simulate(steps.program(), machine()), Error);
}

// A random program against the definition: each start is the latest of what it must follow, and no resource
// overlaps.
TEST(Simulate, RandomProgramsKeepEveryPromise) {
  std::mt19937 random(7);
  const auto below = [&](std::uint32_t limit) {
    return std::uniform_int_distribution<std::uint32_t>(0, limit - 1)(random);
  };
  for (int round = 0; round < 200; ++round) {
    Steps steps;
    for (OpId id = 0; id < 30; ++id) {
      std::vector<OpId> waits;
      for (std::uint32_t i = below(3); id > 0 && i > 0; --i) waits.push_back(below(id));
      steps.op(OpKind::forward, static_cast<Lane>(below(kLanes)), below(5), waits);
    }
    MachineProfile profile = machine();
    profile.at(Lane::nvme).latency_us = 3;
    if (round % 2 == 0) profile.share({Lane::compute, Lane::optimizer, Lane::h2d});
    const Timeline timeline = simulate(steps.program(), profile);
    const auto& ops = steps.program().ops;
    for (OpId b = 0; b < ops.size(); ++b) {
      for (const OpId wait : ops[b].waits) EXPECT_GE(timeline.ops[b].start_us, timeline.ops[wait].end_us);
      EXPECT_LE(timeline.ops[b].end_us, timeline.step_us);
      const double busy = op_busy_us(ops[b], profile);
      for (OpId a = 0; a < b; ++a) {
        const double busy_a = op_busy_us(ops[a], profile);
        if (ops[a].lane == ops[b].lane) {
          EXPECT_GE(timeline.ops[b].start_us, timeline.ops[a].start_us + busy_a);
        }
        const auto resource = [&](OpId op) { return profile.resource_of(ops[op].lane); };
        if (resource(a) != resource(b)) continue;
        EXPECT_TRUE(timeline.ops[a].start_us + busy_a <= timeline.ops[b].start_us ||
                    timeline.ops[b].start_us + busy <= timeline.ops[a].start_us);
      }
    }
    EXPECT_GE(timeline.step_us, timeline.busiest_resource_us);
  }
}

}  // namespace
}  // namespace terrace
