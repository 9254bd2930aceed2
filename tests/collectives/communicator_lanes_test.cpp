// Several threads of a rank, and the emulated link that its groups share.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/collectives/ranks.h"
#include "tests/collectives/values.h"

namespace terrace {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::HasSubstr;
using testing::StartsWith;
using Bytes = std::vector<std::byte>;

class CommunicatorLanes : public CommunicatorSuite {};

TEST_P(CommunicatorLanes, GroupsOfARankMayBeUsedByDifferentThreads) {
  run_ranks(4, [](Communicator& world) {
    const auto other = world.split(std::vector<int>{3, 2, 1, 0}, "other");
    const auto use = [](Communicator& group, std::uint64_t seed) {
      for (std::uint64_t i = 0; i < 300; ++i) {
        const std::vector<std::uint64_t> mine = {seed + i, at(group.rank())};
        std::vector<std::uint64_t> out(8);
        group.all_gather({.step = i}, WireType::u64, equal_parts(4, 2), bytes_of(mine),
                         std::as_writable_bytes(std::span(out)));
        for (std::uint64_t r = 0; r < 4; ++r) {
          ASSERT_EQ(out[2 * r], seed + i);
          ASSERT_EQ(out[2 * r + 1], r);
        }
      }
    };
    std::thread second([&] { use(*other, 1'000'000); });
    use(world, 0);
    second.join();
  });
}

TEST_P(CommunicatorLanes, TwoThreadsOfARankInOneGroupAreRefused) {
  run_ranks(2, [](Communicator& world) {
    const auto alone = world.split(std::vector<int>{world.rank()}, "alone");
    if (world.rank() == 1) {  // does not come: one of rank 0's threads waits, the other is refused
      while (error_of([&] { alone->barrier({}); }).empty()) {
        std::this_thread::sleep_for(milliseconds(1));
      }
      return;
    }
    std::atomic<int> refused{0};
    const auto enter = [&] {
      if (!error_of([&] { world.barrier({}); }).starts_with("internal: internal: two threads of rank 0"))
        return;
      ++refused;
      world.abort("the test is over");
    };
    std::thread second(enter);
    enter();
    second.join();
    EXPECT_EQ(refused, 1);
  });
}

TEST_P(CommunicatorLanes, ACrossingSaysWhereTheOtherRankIs) {
  const CommunicatorOptions options{.time_limit = milliseconds(400)};
  const RankBody body = [](Communicator& world) {
    const auto other = world.split(std::vector<int>{0, 1}, "other");
    const std::string error = error_of(
        [&] { (world.rank() == 0 ? world : *other).barrier({.what = "h.1", .unit = 2, .step = 3}); });
    const std::string where = "barrier of h.1 (unit 2, step 3), call ";
    EXPECT_THAT(error, testing::AnyOf(HasSubstr("; rank 1 is in " + where + "1 of group other"),
                                      HasSubstr("; rank 0 is in " + where + "2 of group world")));
  };
  run_ranks(2, body, options);
}

// --- the emulated link

TEST_P(CommunicatorLanes, TheLinkTakesAtLeastTheTimeOfTheBytesSent) {
  run_ranks(2,
            [](Communicator& world) {
              const std::vector<Part> parts = equal_parts(2, 100'000);
              const Bytes mine(100'000);
              Bytes out(200'000);
              const auto start = steady_clock::now();
              for (int i = 0; i < 3; ++i) world.all_gather({}, WireType::u8, parts, mine, out);
              EXPECT_GE(steady_clock::now() - start, milliseconds(30));  // 300,000 bytes at 10 MB/s
            },
            {.link_gbps = 0.01});
}

TEST_P(CommunicatorLanes, GroupsShareARanksLink) {
  run_ranks(2,
            [](Communicator& world) {
              const auto other = world.split(std::vector<int>{0, 1}, "other");
              const auto use = [](Communicator& group) {
                Bytes data(200'000);
                group.broadcast({}, WireType::u8, 0, data);
              };
              const auto start = steady_clock::now();
              std::thread second([&] { use(*other); });
              use(world);
              second.join();
              EXPECT_GE(steady_clock::now() - start, milliseconds(40));
            },
            {.link_gbps = 0.01});
}

// Rates so low that only the abort can end it: what all have entered is delivered all the same, and the sleep
// is cut short.
TEST_P(CommunicatorLanes, WhatAllHaveEnteredEndsOnAllAndAFailureCutsTheSleep) {
  run_ranks(2,
            [](Communicator& world) {
              const Bytes mine(1000, static_cast<std::byte>(world.rank() + 1));
              Bytes out(2000);
              std::thread other_lane;
              if (world.rank() == 1) {
                other_lane = std::thread([&] {
                  std::this_thread::sleep_for(milliseconds(50));
                  world.abort("another lane failed");
                });
              }
              const std::string error =
                  error_of([&] { world.all_gather({}, WireType::u8, equal_parts(2, 1000), mine, out); });
              if (other_lane.joinable()) other_lane.join();
              if (error.empty()) {
                EXPECT_EQ(out[0], std::byte{1});
                EXPECT_EQ(out[1999], std::byte{2});
              }  // else the machine was so busy that the abort came first
              EXPECT_THAT(error_of([&] { world.barrier({}); }),
                          StartsWith("cancelled: rank 1 failed: another lane failed; "));
            },
            {.link_gbps = 1e-9});
}

INSTANTIATE_TEST_SUITE_P(Backends, CommunicatorLanes, testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace terrace
