// Programs of the compiler through the checker, which shares no code with it.
#include <gtest/gtest.h>

#include <algorithm>

#include "src/base/fail.h"
#include "src/plan/check_plan.h"
#include "tests/plan/tiny_models.h"

namespace terrace {
namespace {

using namespace testing_models;

constexpr UpdateTime kUpdateTimes[] = {UpdateTime::next_forward, UpdateTime::backward};

void expect_legal(const PlanRequest& request, const Plan& plan) {
  EXPECT_NO_THROW(require_legal(request.model, plan, request.contributions));
  const CheckInput input = check_input(request.model, plan, request.contributions);
  for (const StepProgram& program : plan.programs) {
    if (program.ops.empty()) continue;
    const auto violations = check_program(program, input);
    for (std::size_t i = 0; i < std::min<std::size_t>(3, violations.size()); ++i) {
      ADD_FAILURE() << name_of(program.kind) << ": " << name_of(violations[i].rule) << ": "
                    << violations[i].text;
    }
    EXPECT_TRUE(redundant_waits(program).empty()) << name_of(program.kind);
    for (const Tier tier : {Tier::device, Tier::host}) {
      EXPECT_LE(peak_live_bytes(program, tier), plan.arena_bytes[static_cast<std::size_t>(tier)]);
    }
  }
}

TEST(Compile, EveryPlacementIsLegalWithRoomAndWithTheLeast) {
  const std::vector<TierShares> all{kAllDevice, kAllHost, kAllNvme, kHalves, kThirds};
  int plans = 0;
  for (const bool tied : {false, true}) {
    for (const std::uint32_t contributions : {1u, 2u, 3u}) {
      for (const std::uint64_t chunk_numel : {4096u, 8192u, 65536u}) {
        for (std::size_t mix = 0; mix < all.size() * all.size(); ++mix) {
          PlanRequest request = roomy_request(tiny_model(3, tied), contributions, chunk_numel);
          request.parameters = all[mix % all.size()];
          request.optimizer_state = all[mix / all.size()];
          request.gradients = all[(mix + 1) % all.size()];
          request.activations = all[(mix + 2) % all.size()];
          request.recompute = mix % 2 == 0 ? Recompute::always : Recompute::never;
          request.updates = kUpdateTimes[plans % 2];
          const Plan plan = make_plan(request);
          ASSERT_TRUE(plan.fits) << to_text(plan.ledger);
          expect_legal(request, plan);
          ++plans;
          if (HasFailure())
            FAIL() << "tied " << tied << " C " << contributions << " chunk " << chunk_numel << " mix " << mix;
          if (mix % 4 > 1) continue;
          request.budget_bytes = {1, 1, request.budget_bytes[2]};
          const Plan refused = make_plan(request);
          ASSERT_FALSE(refused.fits);
          request.budget_bytes = {refused.least_bytes[0], refused.least_bytes[1], request.budget_bytes[2]};
          const Plan least = make_plan(request);
          ASSERT_TRUE(least.fits) << to_text(least.ledger);
          expect_legal(request, least);
          --request.budget_bytes[0];
          EXPECT_FALSE(make_plan(request).fits);
        }
      }
    }
  }
  EXPECT_GT(plans, 100);
}

TEST(Compile, AutomaticPlacementIsLegalAtEveryBudget) {
  const ModelShape model = tiny_model(6, true);
  for (std::uint64_t device = 100 * kKiB; device < 2 * kMiB; device += 97 * kKiB) {
    for (std::uint64_t host = 100 * kKiB; host < 6 * kMiB; host += 501 * kKiB) {
      PlanRequest request = roomy_request(model, 2, 8192);
      request.budget_bytes = {device, host, 64 * kMiB};
      const Plan plan = make_plan(request);
      if (!plan.fits) {
        EXPECT_TRUE(plan.least_bytes[0] > device || plan.least_bytes[1] > host);
        continue;
      }
      EXPECT_LE(plan.arena_bytes[0], device);
      EXPECT_LE(plan.arena_bytes[1], host);
      expect_legal(request, plan);
    }
  }
}

TEST(Compile, EverythingMovesToFasterTiersAsBudgetsGrow) {
  PlanRequest request = roomy_request(tiny_model(6, false), 1, 8192);
  const Plan plan = make_plan(request);
  for (const Tier tier : plan.placement.parameters) EXPECT_EQ(tier, Tier::device);
  for (const Tier tier : plan.placement.optimizer_state) EXPECT_EQ(tier, Tier::host);
  for (const Tier tier : plan.placement.activations) EXPECT_EQ(tier, Tier::device);
  for (std::size_t u = 0; u < 8; ++u) EXPECT_FALSE(plan.placement.recompute[u]);
  for (const Lane lane : {Lane::nvme, Lane::store})
    EXPECT_EQ(lane_bytes(plan.program(ProgramKind::train))[static_cast<std::size_t>(lane)], 0u);
}

std::size_t carried(const StepProgram& program, Carry carry) {
  return static_cast<std::size_t>(std::count_if(program.slots.begin(), program.slots.end(),
                                                [&](const Slot& slot) { return slot.carry == carry; }));
}

// Slots of states take what the host leaves: each holds a state over the border of two steps.
TEST(Compile, RoomCarriesStatesAcrossTheBorder) {
  for (const UpdateTime updates : kUpdateTimes) {
    PlanRequest request = roomy_request(tiny_model(6, false), 1, 8192);
    request.optimizer_state = kAllNvme;
    request.updates = updates;
    const Plan roomy = make_plan(request);
    const std::size_t chunks = roomy.chunks.size();
    for (const ProgramKind kind : {ProgramKind::train, ProgramKind::train_commit}) {
      EXPECT_EQ(carried(roomy.program(kind), Carry::in), chunks);
      EXPECT_EQ(carried(roomy.program(kind), Carry::out), chunks);
    }
    EXPECT_EQ(carried(roomy.program(ProgramKind::drain), Carry::in), chunks);
    request.budget_bytes[1] -= roomy.ledger.total(Tier::host) < request.budget_bytes[1]
                                   ? request.budget_bytes[1] - roomy.ledger.total(Tier::host) + 300 * kKiB
                                   : 300 * kKiB;
    const Plan fewer = make_plan(request);
    EXPECT_LT(carried(fewer.program(ProgramKind::train), Carry::in), chunks);
    EXPECT_GT(carried(fewer.program(ProgramKind::train), Carry::in), 1u);
    expect_legal(request, fewer);
  }
}

TEST(Compile, DroppedWaitsAreAllRefused) {
  for (const std::uint32_t contributions : {1u, 2u, 3u, 4u}) {
    PlanRequest request = roomy_request(tiny_model(2, true), (contributions + 1) / 2, 8192);
    request.updates = kUpdateTimes[contributions % 2];
    request.parameters = request.optimizer_state = request.gradients = request.activations = kHalves;
    request.recompute = Recompute::always;
    request.slack = 0;
    const Plan plan = make_plan(request);
    const CheckInput input = check_input(request.model, plan, request.contributions);
    std::size_t dropped = 0, refused = 0;
    for (const StepProgram& program : plan.programs) {
      if (program.ops.empty()) continue;
      for_each_dropped_wait(program, [&](const StepProgram& broken, WaitOf wait) {
        ++dropped;
        const bool found = !check_program(broken, input).empty();
        refused += found ? 1 : 0;
        EXPECT_TRUE(found) << name_of(program.kind) << ": " << describe_op(program, wait.op) << " without "
                           << describe_op(program, wait.wait);
      });
    }
    EXPECT_EQ(dropped, refused);
    EXPECT_GT(dropped, 50u);
  }
}

TEST(Compile, RefusesWhatNoBudgetCouldHelp) {
  PlanRequest request = roomy_request(tiny_model(1, false), 1, 4096);
  request.nvme_tier = false;
  request.parameters = kHalves;
  EXPECT_THROW(make_plan(request), Error);
  request = roomy_request(tiny_model(1, false), 1, 4096);
  request.has_store = false;
  request.optimizer_state = kAllNvme;
  EXPECT_THROW(make_plan(request), Error);
  request = roomy_request(tiny_model(1, false), 1, 5000);
  EXPECT_THROW(make_plan(request), Error);
}

}  // namespace
}  // namespace terrace
