// What LocalCommunicator promises beyond the suites: no buffers.
#include "src/collectives/local_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "tests/collectives/largest_allocation.h"
#include "tests/collectives/ranks.h"
#include "tests/collectives/values.h"

namespace terrace {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
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
