#include "src/plan/step_costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "src/base/fail.h"
#include "src/plan/op_times.h"
#include "tests/plan/costed_models.h"

namespace terrace {
namespace {

using namespace testing_models;
using testing::HasSubstr;

constexpr auto kNvme = static_cast<std::size_t>(Lane::nvme);

StepBound predicted(const PlanRequest& request, const Plan& plan, const MachineProfile& machine,
                    ProgramKind kind = ProgramKind::train) {
  return step_bound(request.model, plan, kind, op_times_us(plan.program(kind), machine), machine);
}

TEST(StepCosts, AnyProgramTakesAtLeastItsBound) {
  const std::vector<TierShares> all{kAllDevice, kAllHost, kAllNvme, kHalves, kThirds};
  int programs = 0;
  for (const UpdateTime updates : {UpdateTime::next_forward, UpdateTime::backward}) {
    for (const std::uint32_t contributions : {1u, 2u, 3u}) {
      for (std::size_t mix = 0; mix < all.size() * all.size(); ++mix) {
        PlanRequest request = roomy_request(model_of(5, mix % 2 == 0), contributions, 8192);
        request.updates = updates;
        request.parameters = all[mix % all.size()];
        request.optimizer_state = all[mix / all.size()];
        request.gradients = all[(mix + 1) % all.size()];
        request.activations = all[(mix + 2) % all.size()];
        request.recompute = mix % 2 == 0 ? Recompute::always : Recompute::never;
        request.slack = static_cast<int>(mix % 3);
        if (mix % 3 == 2) request.budget_bytes[1] = 3 * kMiB;
        const Plan plan = make_plan(request);
        if (!plan.fits) continue;
        for (const double disk_gbps : {0.1, 4.0, 1000.0}) {
          for (const bool shared : {false, true}) {
            MachineProfile machine = machine_of(disk_gbps);
            if (shared) machine.share({Lane::compute, Lane::optimizer, Lane::h2d, Lane::d2h});
            for (const ProgramKind kind : {ProgramKind::train, ProgramKind::train_commit}) {
              const double simulated = simulate(plan.program(kind), machine).step_us;
              const StepBound bound = predicted(request, plan, machine, kind);
              EXPECT_GE(simulated, bound.bound_us * (1 - 1e-9))
                  << name_of(kind) << " mix " << mix << " C " << contributions << " disk " << disk_gbps
                  << ": " << bound.limited_by;
              EXPECT_FALSE(bound.limited_by.empty());
              ++programs;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(programs, 1000);
}

// With everything in memory and lanes of their own the bound is the compute, and so is the step, but for the
// first gather and the last gradients.
TEST(StepCosts, InMemoryTheBoundIsComputeAndIsReached) {
  for (const UpdateTime updates : {UpdateTime::next_forward, UpdateTime::backward}) {
    for (const std::uint32_t contributions : {1u, 3u}) {
      PlanRequest request = roomy_request(model_of(8), contributions, 65536);
      request.updates = updates;
      request.recompute = Recompute::never;
      request.nvme_tier = request.has_store = false;
      const Plan plan = make_plan(request);
      ASSERT_TRUE(plan.fits);
      const MachineProfile machine = machine_of();
      const StepBound bound = predicted(request, plan, machine);
      double flops = 0;
      for (std::size_t u = 0; u < request.model.units.size(); ++u) {
        const UnitShape& unit = request.model.units[u];
        const bool last = u + 1 == request.model.units.size();
        EXPECT_NEAR(bound.costs.forward_s[u], last ? 0 : unit.forward_flops * 1e-12, 1e-12) << u;
        EXPECT_NEAR(bound.costs.backward_s[u],
                    (unit.backward_flops + (last ? unit.forward_flops : 0)) * 1e-12, 1e-12)
            << u;
        EXPECT_EQ(bound.costs.state_bytes[u], 0);
        flops += unit.forward_flops + unit.backward_flops;
      }
      EXPECT_NEAR(bound.bound_us, contributions * flops * 1e-6, 1e-6);
      EXPECT_NEAR(bound.lane_us[static_cast<std::size_t>(Lane::compute)], bound.bound_us, 1e-6);
      EXPECT_EQ(bound.limited_by, "compute");
      EXPECT_EQ(bound.read_bytes + bound.written_bytes, 0u);
      EXPECT_LT(simulate(plan.program(ProgramKind::train), machine).step_us, 1.08 * bound.bound_us);
    }
  }
}

TEST(StepCosts, StatesOnDiskGiveTheClosedForm) {
  for (const UpdateTime updates : {UpdateTime::next_forward, UpdateTime::backward}) {
    const PlanRequest request = on_disk(updates, 2 * kMiB);
    const Plan plan = make_plan(request);
    ASSERT_TRUE(plan.fits);
    const MachineProfile machine = machine_of(8);
    const StepBound bound = predicted(request, plan, machine);
    double states = 0;
    for (const Chunk& chunk : plan.chunks) states += static_cast<double>(state_slot_bytes(chunk.numel));
    EXPECT_EQ(std::accumulate(bound.costs.state_bytes.begin(), bound.costs.state_bytes.end(), 0.0), states);
    EXPECT_EQ(static_cast<double>(bound.read_bytes), states);
    EXPECT_EQ(static_cast<double>(bound.written_bytes), states);
    EXPECT_EQ(bound.costs.state_slot_bytes,
              static_cast<double>(plan.pools[static_cast<std::size_t>(Pool::state_staging)]));
    EXPECT_NEAR(bound.costs.disk_bytes_per_s, 8e9, 1);
    EXPECT_NEAR(bound.lane_us[kNvme], 2 * states / 8e3, 1e-6);
    EXPECT_EQ(bound.costs.contributions, 2u);
    EXPECT_EQ(std::accumulate(bound.costs.other_disk_s.begin(), bound.costs.other_disk_s.end(), 0.0), 0);
    EXPECT_EQ(bound.costs.closed_disk_s, 0);
    const bool verdict = updates == UpdateTime::next_forward;
    EXPECT_NEAR(
        bound.bound_us,
        1e6 * (verdict ? step_bound_with_verdict_s(bound.costs) : step_bound_without_verdict_s(bound.costs)),
        1e-6);
    EXPECT_GT(bound.bound_us, bound.lane_us[static_cast<std::size_t>(Lane::compute)]);
    EXPECT_THAT(bound.limited_by, HasSubstr(verdict ? "the disk before the forward of " : "the disk after"));
    EXPECT_LT(simulate(plan.program(ProgramKind::train), machine).step_us, 1.25 * bound.bound_us);
  }
}

TEST(StepCosts, MoreStateSlotsLowerTheBoundUntilComputeIsLeft) {
  double before = std::numeric_limits<double>::infinity();
  for (const std::uint64_t host : {2 * kMiB, 3 * kMiB, 64 * kMiB}) {
    const PlanRequest request = on_disk(UpdateTime::next_forward, host);
    const Plan plan = make_plan(request);
    ASSERT_TRUE(plan.fits);
    const StepBound bound = predicted(request, plan, machine_of(16));
    EXPECT_LT(bound.bound_us, before) << host;
    before = bound.bound_us;
  }
  const PlanRequest request = on_disk(UpdateTime::next_forward, 64 * kMiB);
  EXPECT_EQ(predicted(request, make_plan(request), machine_of(16)).limited_by, "compute");
}

TEST(StepCosts, ASlowDiskIsTheBusiestLane) {
  const PlanRequest request = on_disk(UpdateTime::next_forward, 64 * kMiB);
  const StepBound bound = predicted(request, make_plan(request), machine_of(0.2));
  EXPECT_THAT(bound.limited_by, HasSubstr("the disk: "));
  EXPECT_THAT(bound.limited_by, HasSubstr(" MB read and "));
  EXPECT_THAT(bound.limited_by, HasSubstr("0.1 + 0.1 GB/s"));
  EXPECT_DOUBLE_EQ(bound.bound_us, bound.lane_us[kNvme]);
}

// Sums on disk: two contributions of them are written and the first is read back while backward computes;
// parameters on disk are written and read before a unit's forward. A disk too slow for that shows it there.
TEST(StepCosts, OtherTrafficStandsWhereItMustMove) {
  PlanRequest request = roomy_request(model_of(6, false), 2, 8192);
  request.gradients = kAllNvme;
  request.parameters = request.activations = kAllDevice;
  request.optimizer_state = kAllHost;
  const Plan sums = make_plan(request);
  const MachineProfile machine = machine_of(1);
  StepBound bound = predicted(request, sums, machine);
  double sum_bytes = 0, param_bytes = 0;
  for (const Chunk& chunk : sums.chunks) {
    sum_bytes += static_cast<double>(chunk.numel) * 4;
    param_bytes += static_cast<double>(chunk.numel) * 2;
  }
  const double read_s = sum_bytes / machine.at(Lane::nvme).gbps / 1e9;
  const double write_s = sum_bytes / machine.at(Lane::nvme).write_gbps / 1e9;
  EXPECT_NEAR(bound.costs.closed_disk_s, read_s + 2 * write_s, 1e-9);
  EXPECT_NEAR(std::accumulate(bound.costs.other_disk_s.begin(), bound.costs.other_disk_s.end(), 0.0), read_s,
              1e-9);

  request.gradients = kAllHost;
  request.parameters = kAllNvme;
  const Plan params = make_plan(request);
  bound = predicted(request, params, machine);
  EXPECT_NEAR(std::accumulate(bound.costs.other_disk_s.begin(), bound.costs.other_disk_s.end(), 0.0),
              param_bytes * (1 / machine.at(Lane::nvme).gbps + 1 / machine.at(Lane::nvme).write_gbps) / 1e9,
              1e-9);
  EXPECT_GT(bound.costs.closed_disk_s, 0);
  EXPECT_LT(bound.costs.closed_disk_s, 3.5 * param_bytes / machine.at(Lane::nvme).gbps / 1e9);
  // With room for all of them they may all have been read before.
  Plan roomy = params;
  roomy.pools[static_cast<std::size_t>(Pool::piece)] = kGiB;
  EXPECT_EQ(predicted(request, roomy, machine).costs.closed_disk_s, 0);

  // Without a verdict: read once before the first backward, written behind each.
  request.updates = UpdateTime::backward;
  request.contributions = 1;
  bound = predicted(request, make_plan(request), machine);
  EXPECT_NEAR(bound.costs.closed_disk_s, param_bytes / machine.at(Lane::nvme).gbps / 1e9, 1e-9);
  EXPECT_NEAR(std::accumulate(bound.costs.other_disk_s.begin(), bound.costs.other_disk_s.end(), 0.0),
              param_bytes / machine.at(Lane::nvme).write_gbps / 1e9, 1e-9);

  MachineProfile slow = machine_of(0.05);
  slow.at(Lane::nvme).write_gbps = 1e6;
  EXPECT_THAT(predicted(request, make_plan(request), slow).limited_by, HasSubstr("the disk"));
}

TEST(StepCosts, LanesThatShareCoresCountAsOneWithTheChecksums) {
  const PlanRequest request = on_disk(UpdateTime::next_forward, 64 * kMiB);
  const Plan plan = make_plan(request);
  MachineProfile machine = machine_of(1000);
  machine.share({Lane::compute, Lane::optimizer, Lane::h2d, Lane::d2h});
  machine.checksum_gbps = 20;
  const auto op_us = op_times_us(plan.program(ProgramKind::train), machine);
  const StepBound bound = step_bound(request.model, plan, ProgramKind::train, op_us, machine);
  double sum = bound.checksum_us;
  for (const Lane lane : {Lane::compute, Lane::optimizer, Lane::h2d, Lane::d2h})
    sum += bound.lane_us[static_cast<std::size_t>(lane)];
  EXPECT_DOUBLE_EQ(bound.checksum_us, static_cast<double>(bound.read_bytes + bound.written_bytes) / 2e4);
  EXPECT_NEAR(bound.bound_us, sum, 1e-6);
  EXPECT_THAT(bound.limited_by, testing::StartsWith("the cores: compute "));
  EXPECT_THAT(bound.limited_by, HasSubstr(", checksums "));
  // Seen at work for less: two lanes at once slow each other down.
  const StepBound seen =
      step_bound(request.model, plan, ProgramKind::train, op_us, machine, bound.bound_us * 0.95);
  EXPECT_NEAR(seen.bound_us, 0.95 * bound.bound_us, 1e-6);
  EXPECT_DOUBLE_EQ(
      step_bound(request.model, plan, ProgramKind::train, op_us, machine, 2 * bound.bound_us).bound_us,
      bound.bound_us);
}

TEST(StepCosts, WithoutDiskRatesTheDiskTakesNoTime) {
  const PlanRequest request = on_disk(UpdateTime::next_forward, 2 * kMiB);
  const Plan plan = make_plan(request);
  MachineProfile machine = machine_of();
  machine.at(Lane::nvme) = {};
  EXPECT_EQ(predicted(request, plan, machine).limited_by, "compute");
}

TEST(StepCosts, RefusesTimesOfAnotherProgram) {
  const PlanRequest request = on_disk(UpdateTime::next_forward, 2 * kMiB);
  const Plan plan = make_plan(request);
  EXPECT_THROW(step_bound(request.model, plan, ProgramKind::train, {1, 2}, machine_of()), Error);
}

TEST(StepCosts, ADiskLaneTakesAsLongForBothInTurnAsTheDiskForBothAtOnce) {
  const LaneProfile lane = disk_lane(3, 6, 3.5);
  EXPECT_NEAR(1 / lane.gbps + 1 / lane.write_gbps, 2 / 3.5, 1e-12);
  EXPECT_NEAR(lane.write_gbps / lane.gbps, 2, 1e-12);
  EXPECT_THROW(disk_lane(3, 0, 1), Error);
  EXPECT_THROW(disk_lane(3, 6, -1), Error);
}

}  // namespace
}  // namespace terrace
