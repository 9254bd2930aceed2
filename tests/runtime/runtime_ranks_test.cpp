// Contract C1 over ranks, on the toy model: the program of every rank in its own runtime.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <thread>

#include "io/io_hooks.h"
#include "src/base/fail.h"
#include "src/plan/check_plan.h"
#include "tests/plan/ranked_plans.h"
#include "tests/runtime/toy_engine.h"
#include "tests/support/temp_dir.h"
#include "tests/support/watchdog.h"

namespace terrace {
namespace {

using namespace testing_models;

// Hundreds of small stores: in memory where the machine has a file system for it.
std::string memory_folder() {
  return std::filesystem::exists("/dev/shm") ? "/dev/shm" : testing::TempDir();
}

const RankShape kMeshes[] = {{Stage::replicated, 2, 1}, {Stage::replicated, 3, 1}, {Stage::optimizer, 2, 1},
                             {Stage::gradients, 3, 1},  {Stage::parameters, 2, 1}, {Stage::parameters, 4, 1},
                             {Stage::parameters, 4, 2}, {Stage::parameters, 2, 2}};

// Contributions added up in other orders: not the bits of one rank, but the same on every mesh that adds up
// the same ones.
const std::vector<std::vector<RankShape>> kReductions = {
    {{Stage::replicated, 2, 1, Reduction::last}, {Stage::optimizer, 2, 1, Reduction::last}},
    {{Stage::replicated, 2, 1, Reduction::grouped},
     {Stage::optimizer, 2, 1, Reduction::grouped},
     {Stage::gradients, 2, 1, Reduction::grouped},
     {Stage::parameters, 2, 1, Reduction::grouped},
     {Stage::parameters, 4, 2, Reduction::hierarchical}}};

std::string words_of(const PlanRequest& request, const RuntimeOptions& runtime) {
  return words(request.ranks) + ", " + std::to_string(request.contributions) + " contributions, " +
         (request.updates == UpdateTime::backward ? "updates in backward" : "updates in the next forward") +
         ", slack " + std::to_string(request.slack) +
         (runtime.adversarial ? ", adversarial " + std::to_string(runtime.adversarial_seed) : "");
}

class RankedRuntime : public testing::TestWithParam<UpdateTime> {};

TEST_P(RankedRuntime, GivesTheBitsOfOneRankInEveryStageAndMode) {
  const TempDir folder(memory_folder());
  static constexpr std::pair<int, TierShares> kPlaces[] = {
      {0, kAllNvme}, {0, kThirds}, {2, kHalves}, {1, kAllHost}, {0, kAllDevice}};
  std::size_t place = 0;
  for (const std::uint32_t contributions : {1u, 3u}) {
    for (const RankShape& mesh : kMeshes) {
      PlanRequest request = tight_request(contributions, GetParam());
      request.cut_ranks = mesh.ranks;
      const ToyResult one = run_toy(request.model, make_plan(request), folder.file("one"));
      ASSERT_EQ(one.losses.size(), 3 * contributions + 1);
      EXPECT_EQ(one.committed, 2u);
      EXPECT_EQ(one.committed_at_end, 3u);
      request.ranks = mesh;
      const auto expect_same = [&](const std::vector<RuntimeOptions>& modes) {
        const std::vector<Plan> plans = make_plans(request);
        ASSERT_TRUE(plans[0].fits);
        for (const RuntimeOptions& mode : modes) {
          const std::string what = words_of(request, mode);
          const Watchdog watchdog(what);
          EXPECT_EQ(run_toy(request.model, plans, folder.file("a"), {.runtime = mode}), one) << what;
        }
      };
      // Half of everything on disk and the least pools: most operations, in many orders.
      expect_same({{},
                   {.adversarial = true},
                   {.adversarial = true, .adversarial_seed = 100},
                   {.adversarial = true, .adversarial_seed = 200}});
      for (int other = 0; other < 2; ++other) {
        const auto& [slack, where] = kPlaces[place++ % std::size(kPlaces)];
        request.slack = slack;
        request.persist_below_numel = other == 0 ? 1 << 20 : 0;  // stage 3: every unit stays whole
        request.parameters = request.optimizer_state = request.gradients = request.activations = where;
        expect_same({{.adversarial = other == 0, .adversarial_seed = 300}});
      }
    }
  }
}

TEST_P(RankedRuntime, OtherOrdersGiveTheSameBitsInEveryStageAndMode) {
  const TempDir folder(memory_folder());
  const ToyResult each = [&] {
    PlanRequest request = tight_request(7, GetParam());
    request.cut_ranks = 4;
    return run_toy(request.model, make_plan(request), folder.file("each"));
  }();
  for (const auto& meshes : kReductions) {
    std::optional<ToyResult> first;
    for (const RankShape& mesh : meshes) {
      PlanRequest request = tight_request(7, GetParam());
      request.ranks = mesh;
      request.cut_ranks = 4;
      for (const RuntimeOptions& mode : {RuntimeOptions{}, RuntimeOptions{.adversarial = true},
                                         RuntimeOptions{.adversarial = true, .adversarial_seed = 100}}) {
        const std::string what = words_of(request, mode);
        const Watchdog watchdog(what);
        const ToyResult result =
            run_toy(request.model, make_plans(request), folder.file("a"), {.runtime = mode});
        if (!first) first = result;
        EXPECT_EQ(result, *first) << what;
      }
    }
    // To rounding the first step's gradient is the same; its sum is another.
    EXPECT_NEAR(first->norms[0], each.norms[0], 1e-6 * each.norms[0]);
    EXPECT_NE(first->hash, each.hash);
  }
}

// The store is one: while it is made whole no rank writes into it, however long that takes.
TEST_P(RankedRuntime, NobodyWritesDuringACommit) {
  class SlowFlush : public IoHooks {
   public:
    int see_flush(const std::string&, int result) override {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      return result;
    }
  };
  const TempDir folder(memory_folder());
  for (const RankShape& mesh : kMeshes) {
    PlanRequest request = tight_request(2, GetParam());
    request.optimizer_state = kAllNvme;
    request.cut_ranks = mesh.ranks;
    const ToyResult one = run_toy(request.model, make_plan(request), folder.file("one"));
    request.ranks = mesh;
    const Watchdog watchdog(words(mesh));
    EXPECT_EQ(run_toy(request.model, make_plans(request), folder.file("a"),
                      {.hooks = std::make_shared<SlowFlush>()}),
              one)
        << words(mesh);
  }
}

// The checker refuses each; here it is off, and wrong numbers, or ranks that do not meet, show that the waits
// matter. One rank's program is broken at a time.
TEST_P(RankedRuntime, MostDroppedWaitsChangeAResultInAdversarialMode) {
  const TempDir folder(memory_folder());
  int found = 0, dropped = 0, changed = 0, waited = 0;
  std::string unseen;
  const auto try_one = [&](const PlanRequest& request, const std::vector<Plan>& plans, const ToyResult& right,
                           std::size_t rank, int kind) {
    for_each_dropped_wait(plans[rank].programs[kind], [&](const StepProgram& broken, WaitOf wait) {
      std::vector<Plan> wrong = plans;
      wrong[rank].programs[kind] = broken;
      if (found++ % 6 != 0) return;  // all take half a minute
      ++dropped;
      ToyOptions options;
      options.runtime = {.adversarial = true,
                         .adversarial_kind = static_cast<ProgramKind>(kind),
                         .adversarial_first = wait.op};
      options.adversarial_rank = static_cast<std::uint32_t>(rank);
      const std::string what = words(request.ranks) + ", rank " + std::to_string(rank) + ": " +
                               describe_op(plans[rank].programs[kind], wait.op) + " without " +
                               describe_op(plans[rank].programs[kind], wait.wait);
      const Watchdog watchdog(what);
      try {
        if (!(run_toy(request.model, wrong, folder.file("b"), options) == right)) {
          ++changed;
          return;
        }
      } catch (const Error& error) {  // it reads what was never written: also a result
        ++changed;
        waited += std::string(error.what()).find("did not come to") != std::string::npos ? 1 : 0;
        return;
      }
      unseen += what + "\n";
    });
  };
  for (const RankShape& mesh : {RankShape{Stage::replicated, 2, 1}, RankShape{Stage::parameters, 2, 1},
                                RankShape{Stage::optimizer, 2, 1, Reduction::last}}) {
    PlanRequest request = tight_request(3, GetParam());
    request.ranks = mesh;
    const std::vector<Plan> plans = make_plans(request);
    const ToyResult right = run_toy(request.model, plans, folder.file("b"));
    for (int kind = 0; kind < kProgramKinds; ++kind)
      try_one(request, plans, right, static_cast<std::size_t>(kind) % 2, kind);
  }
  std::cout << changed << " of " << dropped << " dropped waits changed a result, " << waited
            << " of them because ranks did not meet\n"
            << unseen;
  RecordProperty("dropped", dropped);
  RecordProperty("changed", changed);
  EXPECT_GT(dropped, 80);
  EXPECT_GE(changed, dropped * 9 / 10) << "not seen:\n" << unseen;
}

TEST_P(RankedRuntime, AFailureOfOneRankAtAnyKindOfOperationStopsAllWithItsCause) {
  const TempDir folder(memory_folder());
  int turn = 0;
  for (const RankShape& mesh : kMeshes) {
    PlanRequest request = tight_request(3, GetParam());
    request.ranks = mesh;
    const std::vector<Plan> plans = make_plans(request);
    ++turn;
    for (int kind = 0; kind <= static_cast<int>(OpKind::commit); ++kind) {
      if ((kind + turn) % 3 == 0) continue;
      const bool adversarial = (kind + turn) % 3 == 1;
      const std::uint32_t culprit = mesh.ranks - 1;
      std::atomic<bool> struck{false};
      ToyOptions options;
      options.runtime.adversarial = adversarial;
      options.runtime.before_operation = [&](std::uint32_t rank, const Op& op) {
        if (rank != culprit || op.kind != static_cast<OpKind>(kind)) return;
        struck = true;
        throw std::runtime_error("the toy broke");
      };
      const std::string what =
          words_of(request, options.runtime) + ", " + std::string(name_of(static_cast<OpKind>(kind)));
      const Watchdog watchdog(what);
      try {
        run_toy(request.model, plans, folder.file("c"), options);
        EXPECT_FALSE(struck) << what;
      } catch (const std::runtime_error& error) {
        EXPECT_NE(std::string(error.what()).find("the toy broke"), std::string::npos)
            << what << ": " << error.what();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Updates, RankedRuntime,
                         testing::Values(UpdateTime::next_forward, UpdateTime::backward),
                         [](const auto& updates) {
                           return updates.param == UpdateTime::backward ? "backward" : "next_forward";
                         });

}  // namespace
}  // namespace terrace
