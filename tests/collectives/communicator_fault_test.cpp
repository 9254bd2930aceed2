// A rank that fails, leaves or never comes: every other rank stops, and says why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "tests/collectives/ranks.h"
#include "tests/collectives/small_call.h"
#include "tests/collectives/values.h"

namespace terrace {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::AnyOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::StartsWith;

class CommunicatorFault : public CommunicatorSuite {};

std::string kind_text(CollectiveKind kind) {
  return std::string(collective_name(kind)) + " of h.3 (unit 4, step 7";
}

// Every call from here on throws `cause`.
void expect_failed(Communicator& group, const std::string& cause) {
  for (const CollectiveKind kind : kCallKinds) {
    EXPECT_THAT(error_of([&] { make_call(group, {.kind = kind}); }),
                AllOf(StartsWith(cause), HasSubstr("rank " + std::to_string(group.world_rank()) +
                                                   " met this in " + kind_text(kind))));
  }
  EXPECT_THAT(error_of([&] { group.split({}, ""); }), StartsWith(cause));
}

TEST_P(CommunicatorFault, ARankThatFailsStopsTheOthersInEveryCollective) {
  for (const CollectiveKind kind : kCallKinds) {
    for (int culprit = 0; culprit < 3; ++culprit) {
      for (const bool late : {false, true}) {
        run_ranks(3, [&](Communicator& world) {
          make_call(world, {});
          const std::string rank = "rank " + std::to_string(culprit);
          const std::string cause = "cancelled: " + rank + " failed: the disk is on fire; ";
          // One side comes first, mostly: the others wait already, or find that it is over.
          if (late == (world.rank() == culprit)) std::this_thread::sleep_for(milliseconds(3));
          if (world.rank() == culprit) {
            world.abort("the disk is on fire");
          } else {
            const std::string error = error_of([&] { make_call(world, {.kind = kind}); });
            EXPECT_THAT(error, StartsWith(cause));
            EXPECT_THAT(error, HasSubstr(kind_text(kind)));
            EXPECT_THAT(error, HasSubstr("call 2 of group world"));
            // It waited for the culprit, or came when it was over.
            EXPECT_THAT(error, AnyOf(ContainsRegex("where it waited for ranks? .*" + std::to_string(culprit)),
                                     HasSubstr(" met this in ")));
          }
          expect_failed(world, cause);
        });
      }
    }
  }
}

TEST_P(CommunicatorFault, AFailureStopsEveryGroupOfTheWorld) {
  run_ranks(4, [](Communicator& world) {
    const int r = world.rank();
    const auto pair = world.split(r < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3}, r < 2 ? "a" : "b");
    const auto alone = world.split(std::vector<int>{r}, "alone");
    const std::string cause = "cancelled: rank 3 failed: no memory; ";
    // 0 waits for 1, who waits for all; 2 waits for 3, who gives up.
    if (r == 3) {
      pair->abort("no memory");
    } else {
      Communicator& group = r == 1 ? world : *pair;
      EXPECT_THAT(error_of([&] { make_call(group, {}); }), StartsWith(cause));
    }
    for (Communicator* group : {&world, pair.get(), alone.get()}) expect_failed(*group, cause);
  });
}

TEST_P(CommunicatorFault, TheFirstCauseStays) {
  run_ranks(2, [](Communicator& world) {
    const auto pair = world.split(std::vector<int>{1, 0}, "pair");
    if (world.rank() == 0) {
      pair->abort("the first");
      world.abort("the second");
    } else {
      EXPECT_THAT(error_of([&] { make_call(world, {}); }),
                  StartsWith("cancelled: rank 0 failed: the first; "));
      world.abort("the third");
    }
    expect_failed(*pair, "cancelled: rank 0 failed: the first; ");
  });
}

TEST_P(CommunicatorFault, AnotherThreadOfTheRankMayAbort) {
  run_ranks(2, [](Communicator& world) {
    if (world.rank() == 1) {
      std::thread lane([&] {
        std::this_thread::sleep_for(milliseconds(2));
        world.abort("its compute lane stopped");
      });
      lane.join();
    }
    std::thread lane;
    if (world.rank() == 0) {
      lane = std::thread([&] { world.abort("never mind"); });
      lane.join();
    }
    EXPECT_THAT(error_of([&] { make_call(world, {}); }), StartsWith("cancelled: rank "));
  });
}

TEST_P(CommunicatorFault, AnExceptionThatPassesAHandleAborts) {
  for (int culprit = 0; culprit < 3; ++culprit) {
    run_ranks(3, [&](Communicator& world) {
      const std::string cause = "cancelled: rank " + std::to_string(culprit) +
                                " failed: an exception that took its communicator away; ";
      try {
        const auto group = world.split(std::vector<int>{0, 1, 2}, "all");
        if (world.rank() == culprit) throw std::runtime_error("lost");
        make_call(*group, {.kind = CollectiveKind::all_gather});
        ADD_FAILURE() << "rank " << world.rank() << " went on";
      } catch (const Error& error) {
        EXPECT_NE(world.rank(), culprit);
        EXPECT_THAT("cancelled: " + std::string(error.what()), StartsWith(cause));
      } catch (const std::runtime_error& error) {
        EXPECT_EQ(world.rank(), culprit);
      }
      expect_failed(world, cause);
    });
  }
}

TEST_P(CommunicatorFault, AHandleDestroyedInPeaceHarmsNobodyWhoIsDone) {
  for (int i = 0; i < 50; ++i) {
    run_ranks(3, [&](Communicator& world) {
      {
        const auto group = world.split(std::vector<int>{2, 0, 1}, "all");
        make_call(*group, {.kind = kCallKinds[static_cast<std::size_t>(i) % std::size(kCallKinds)]});
      }
      make_call(world, {.kind = CollectiveKind::all_gather});
    });
  }
}

TEST_P(CommunicatorFault, ARankThatLeftIsNotWaitedFor) {
  for (int leaver = 0; leaver < 3; ++leaver) {
    for (const bool late : {false, true}) {
      run_ranks(3, [&](Communicator& world) {
        auto group = world.split(std::vector<int>{0, 1, 2}, "all");
        const std::string who = "rank " + std::to_string(leaver);
        if (late == (world.rank() == leaver)) std::this_thread::sleep_for(milliseconds(3));
        if (world.rank() == leaver) {
          group.reset();
        } else {
          EXPECT_THAT(error_of([&] { make_call(*group, {.kind = CollectiveKind::all_gather}); }),
                      AllOf(StartsWith("cancelled: " + who + " left group all before all_gather of h.3"),
                            HasSubstr("rank " + std::to_string(world.rank()))));
        }
      });
    }
  }
}

// Rank `missing` never comes to the collective. It learns of the end in a group of its own.
TEST_P(CommunicatorFault, ARankThatNeverComesIsNamedInEveryCollective) {
  const CommunicatorOptions options{.time_limit = milliseconds(300)};
  for (const CollectiveKind kind : kCallKinds) {
    for (int missing = 0; missing < 3; ++missing) {
      const RankBody body = [&](Communicator& world) {
        const auto alone = world.split(std::vector<int>{world.rank()}, "alone");
        std::string error;
        if (world.rank() == missing) {
          while (error.empty()) {
            std::this_thread::sleep_for(milliseconds(1));
            error = error_of([&] { make_call(*alone, {}); });
          }
        } else {
          error = error_of([&] { make_call(world, {.kind = kind}); });
          EXPECT_THAT(error, AnyOf(HasSubstr(" met this in "), HasSubstr(", where it waited for ")));
        }
        // On a machine with much to do, others may be missing too.
        const std::string number = std::to_string(missing);
        EXPECT_THAT(error, AnyOf(StartsWith("cancelled: rank " + number + " did not come to "),
                                 ContainsRegex("^cancelled: ranks .*" + number + ".* did not come to ")));
        EXPECT_THAT(error, HasSubstr(" did not come to " + kind_text(kind)));
        EXPECT_THAT(error, ContainsRegex("call 2 of group world: rank [0-2] waited [0-9]+\\.[0-9][0-9] s"));
        EXPECT_THAT(error, HasSubstr("(the limit is 0.30 s)"));
        expect_failed(world, error.substr(0, error.find("; ")));
      };
      run_ranks(3, body, options);
    }
  }
}

TEST_P(CommunicatorFault, ALateRankIsWaitedForWithinTheLimit) {
  for (const CollectiveKind kind : kCallKinds) {
    for (int late = 0; late < 3; ++late) {
      run_ranks(3, [&](Communicator& world) {
        if (world.rank() == late) std::this_thread::sleep_for(milliseconds(5));
        make_call(world, {.kind = kind});
        EXPECT_EQ(world.stats().of(kind).calls, 1u);
      });
    }
  }
}

// Ranks that wait for each other in different groups.
TEST_P(CommunicatorFault, ACrossingEndsAtTheLimit) {
  const CommunicatorOptions options{.time_limit = milliseconds(300)};
  const RankBody body = [](Communicator& world) {
    const auto other = world.split(std::vector<int>{0, 1}, "other");
    const std::string error = error_of([&] { make_call(world.rank() == 0 ? world : *other, {}); });
    EXPECT_THAT(error, ContainsRegex("^cancelled: rank [01] did not come to barrier of h.3"));
  };
  run_ranks(2, body, options);
}

INSTANTIATE_TEST_SUITE_P(Backends, CommunicatorFault, testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace terrace
