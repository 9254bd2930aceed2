#include "src/runtime/runtime.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <iostream>

#include "io/io_hooks.h"
#include "src/base/fail.h"
#include "src/plan/check_plan.h"
#include "tests/plan/tiny_models.h"
#include "tests/runtime/toy_engine.h"
#include "tests/support/temp_dir.h"

namespace terrace {
namespace {

using namespace testing_models;

// Hundreds of small stores: in memory where the machine has a file system for it.
std::string memory_folder() {
  return std::filesystem::exists("/dev/shm") ? "/dev/shm" : testing::TempDir();
}

constexpr std::pair<std::uint32_t, UpdateTime> kModes[] = {{1, UpdateTime::next_forward},
                                                           {3, UpdateTime::next_forward},
                                                           {1, UpdateTime::backward},
                                                           {3, UpdateTime::backward}};

TEST(Runtime, GivesTheSameBitsWithAnyPlacementAndMode) {
  const TempDir folder(memory_folder());
  for (const auto& [contributions, updates] : kModes) {
    PlanRequest request = tight_request(contributions, updates);
    const ToyResult first = run_toy(request.model, make_plan(request), folder.file("a"));
    ASSERT_EQ(first.losses.size(), 3 * contributions + 1);
    EXPECT_EQ(first.committed, 2u);
    EXPECT_EQ(first.committed_at_end, 3u);
    for (const int slack : {0, 1, 2}) {
      for (const TierShares& where : {kAllDevice, kAllHost, kAllNvme, kHalves, kThirds}) {
        request.slack = slack;
        request.parameters = request.optimizer_state = request.gradients = request.activations = where;
        const Plan plan = make_plan(request);
        for (const bool adversarial : {false, true}) {
          for (const std::uint64_t seed : {0u, 1u}) {
            if (!adversarial && seed > 0) continue;
            EXPECT_EQ(run_toy(request.model, plan, folder.file("a"),
                              {.runtime = {.adversarial = adversarial, .adversarial_seed = seed}}),
                      first)
                << slack << adversarial << seed;
          }
        }
      }
    }
  }
}

// The checker refuses each (compile_program_test); here it is off, and the wrong numbers show that the waits
// matter.
TEST(Runtime, MostDroppedWaitsChangeAResultInAdversarialMode) {
  const TempDir folder(memory_folder());
  int dropped = 0, changed = 0;
  std::string unseen;
  for (const auto& [contributions, updates] : kModes) {
    const PlanRequest request = tight_request(contributions == 1 ? 1 : 2, updates);
    const Plan plan = make_plan(request);
    const ToyResult right = run_toy(request.model, plan, folder.file("b"));
    for (int kind = 0; kind < kProgramKinds; ++kind) {
      for_each_dropped_wait(plan.programs[kind], [&](const StepProgram& broken, WaitOf wait) {
        Plan wrong = plan;
        wrong.programs[kind] = broken;
        ++dropped;
        const RuntimeOptions first{.adversarial = true,
                                   .adversarial_kind = static_cast<ProgramKind>(kind),
                                   .adversarial_first = wait.op};
        try {
          if (!(run_toy(request.model, wrong, folder.file("b"), {.runtime = first}) == right)) {
            ++changed;
            return;
          }
        } catch (const Error&) {  // it reads what was never written: also a result
          ++changed;
          return;
        }
        unseen += describe_op(plan.programs[kind], wait.op) + " without " +
                  describe_op(plan.programs[kind], wait.wait) + "\n";
      });
    }
  }
  RecordProperty("dropped", dropped);
  RecordProperty("changed", changed);
  EXPECT_GE(changed, dropped * 9 / 10) << changed << " of " << dropped << "; not seen:\n" << unseen;
  std::cout << changed << " of " << dropped << " dropped waits changed a result\n" << unseen;
  EXPECT_GT(dropped, 200);
}

TEST(Runtime, AFailureOnOneLaneStopsTheOthersAndSurfacesOnce) {
  const TempDir folder(memory_folder());
  const PlanRequest request = tight_request(1, UpdateTime::next_forward);
  const Plan plan = make_plan(request);
  for (const bool adversarial : {false, true}) {
    try {
      run_toy(request.model, plan, folder.file("c"),
              {.runtime = {.adversarial = adversarial}, .fail_at_unit = 1});
      FAIL();
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "the toy broke");
    }
  }
}

// Every transfer in turn fails, in the middle of whatever the other lanes do: the run ends with that error,
// never in a wait for something that will not come.
TEST(Runtime, AnyFailingTransferEndsTheRunInItsOwnWords) {
  const TempDir folder(memory_folder());
  const PlanRequest request = tight_request(2, UpdateTime::backward);
  const Plan plan = make_plan(request);
  class FailAt : public IoHooks {
   public:
    explicit FailAt(int at) : left_(at) {}
    std::int64_t see_result(const IoCall&, std::int64_t result) override {
      return left_-- == 0 ? -EIO : result;
    }

   private:
    std::atomic<int> left_;
  };
  int failed = 0;
  for (int at = 0; at < 400; at += 7) {
    try {
      run_toy(request.model, plan, folder.file("d"), {.hooks = std::make_shared<FailAt>(at)});
    } catch (const Error& error) {
      ++failed;
      EXPECT_EQ(error.code(), ErrorCode::io_failed) << error.what();
      EXPECT_NE(std::string(error.what()).find(folder.path()), std::string::npos) << error.what();
    }
  }
  EXPECT_GT(failed, 10);
}

}  // namespace
}  // namespace terrace
