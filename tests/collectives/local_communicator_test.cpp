// What LocalCommunicator promises beyond the suites: threads of one process, no buffers, an emulated link.
#include "src/collectives/local_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/collectives/largest_allocation.h"
#include "tests/collectives/ranks.h"
#include "tests/collectives/values.h"

namespace terrace {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::HasSubstr;
using testing::StartsWith;
using Bytes = std::vector<std::byte>;

class LocalCommunicatorTest : public CommunicatorSuite {};

TEST_P(LocalCommunicatorTest, NothingIsAllocatedThatGrowsWithTheData) {
  run_ranks(3, [](Communicator& world) {
    constexpr std::uint64_t kNumel = 500'000;
    const std::vector<Part> parts = equal_parts(3, kNumel);
    const std::vector<bf16> whole(3 * kNumel), mine(kNumel);
    Bytes out(3 * kNumel * 2);
    std::vector<float> sum(kNumel);
    std::vector<double> block_sums(kNumel / 4096 + 1);
    world.reduce_scatter({}, DType::bf16, parts, bytes_of(whole), sum, {});  // starts the workers
    world.barrier({});
    forget_allocations();
    world.barrier({});
    world.all_gather({}, WireType::bf16, parts, bytes_of(mine), out);
    world.all_to_all({}, WireType::bf16, parts, bytes_of(whole), parts, out);
    world.reduce_scatter({}, DType::bf16, parts, bytes_of(whole), sum, {.last = true}, block_sums);
    world.broadcast({}, WireType::u8, 0, out);
    world.gather({}, WireType::bf16, 0, parts, bytes_of(mine), out);
    EXPECT_LE(largest_allocation(), 4096u);
    world.barrier({});
  });
}

TEST_P(LocalCommunicatorTest, GroupsOfARankMayBeUsedByDifferentThreads) {
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

TEST_P(LocalCommunicatorTest, TwoThreadsOfARankInOneGroupAreRefused) {
  std::atomic<int> refused{0};
  run_ranks(2, [&](Communicator& world) {
    if (world.rank() == 1) {
      while (refused == 0) std::this_thread::sleep_for(milliseconds(1));
      world.abort("the test is over");
      return;
    }
    const auto enter = [&] {
      refused +=
          error_of([&] { world.barrier({}); }).starts_with("internal: internal: two threads of rank 0");
    };
    std::thread second(enter);
    enter();
    second.join();
    EXPECT_EQ(refused, 1);
  });
}

TEST_P(LocalCommunicatorTest, ACrossingSaysWhereTheOtherRankIs) {
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

TEST_P(LocalCommunicatorTest, TheLinkTakesAtLeastTheTimeOfTheBytesSent) {
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

TEST_P(LocalCommunicatorTest, GroupsShareARanksLink) {
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
TEST_P(LocalCommunicatorTest, WhatAllHaveEnteredEndsOnAllAndAFailureCutsTheSleep) {
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

INSTANTIATE_TEST_SUITE_P(Local, LocalCommunicatorTest, testing::ValuesIn(std::vector{backends().front()}),
                         backend_name);

// --- making a world

TEST(LocalWorld, HandlesAreInRankOrder) {
  const auto world = make_local_world(3);
  ASSERT_EQ(world.size(), 3u);
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(world[at(r)]->rank(), r);
    EXPECT_EQ(world[at(r)]->size(), 3);
  }
}

TEST(LocalWorld, WrongOptionsAreRefused) {
  const auto error = [](int size, const CommunicatorOptions& options) {
    return error_of([&] { make_local_world(size, options); });
  };
  EXPECT_EQ(error(0, {}), "invalid argument: world: wanted 1 rank or more, got 0");
  EXPECT_THAT(error(2, {.time_limit = milliseconds(0)}), HasSubstr("wanted a time limit of 1 ms to 1 day"));
  EXPECT_THAT(error(2, {.time_limit = std::chrono::hours(25)}), HasSubstr("to 1 day, got 90000000 ms"));
  EXPECT_THAT(error(2, {.link_gbps = -1}), HasSubstr("wanted a link of 0 GB/s or more, got -1"));
}

TEST(LocalWorld, OneRankWorksOnTheThreadThatMadeIt) {
  const auto world = make_local_world(1);
  const Bytes mine(5, std::byte{7});
  Bytes out(5);
  world[0]->all_gather({}, WireType::u8, equal_parts(1, 5), mine, out);
  EXPECT_EQ(out, mine);
  world[0]->barrier({});
  EXPECT_EQ(world[0]->stats().total().sent_bytes, 0u);
}

}  // namespace
}  // namespace terrace
