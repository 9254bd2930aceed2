// What the MPI communicator promises beyond the suites. Every process runs it; see mpi_ranks.cpp.
#include "src/collectives/mpi_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <ctime>
#include <thread>

#include "src/base/units.h"
#include "src/collectives/local_communicator.h"
#include "tests/collectives/largest_allocation.h"
#include "tests/collectives/ranks.h"
#include "tests/collectives/values.h"

namespace terrace {
namespace {

using std::chrono::milliseconds;
using testing::AnyOf;
using testing::HasSubstr;
using testing::StartsWith;
using Bytes = std::vector<std::byte>;

class MpiCommunicatorTest : public CommunicatorSuite {
 protected:
  // In the world of this job, whatever its size.
  void run_job(const RankBody& body, const CommunicatorOptions& options = {}) {
    for (int ranks = 1; ranks <= 8; ++ranks) run_ranks(ranks, body, options);
  }
};

// Parts of several tiles, of one, of none; a tile of bf16 has more elements than one of fp32.
std::vector<Part> long_and_short_parts(int ranks) {
  std::vector<std::uint64_t> numels = {2'100'017, 0, 700'000, 1, 1'500'000, 3, 4, 5};
  numels.resize(at(ranks));
  return consecutive_parts(numels);
}

struct Folded {
  std::vector<float> sum;
  std::vector<double> block_sums;
  std::vector<FoldResult> results;
  friend bool operator==(const Folded& a, const Folded& b) {
    const auto same = [](float x, float y) {
      return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
    };
    return std::ranges::equal(a.sum, b.sum, same) && a.block_sums == b.block_sums &&
           std::ranges::equal(a.results, b.results, [](const FoldResult& x, const FoldResult& y) {
             return x.contributions == y.contributions && x.finite == y.finite;
           });
  }
};

// Two rounds; in the second one rank is absent.
Folded fold_two_rounds(Communicator& world, DType dtype) {
  const std::vector<Part> parts = long_and_short_parts(world.size());
  const std::uint64_t whole = parts.back().offset + parts.back().numel, mine = parts[at(world.rank())].numel;
  Folded folded{.sum = std::vector<float>(mine, 5.0f),
                .block_sums = std::vector<double>(div_up(mine, kBlockNumel)),
                .results = {}};
  for (int round = 0; round < 2; ++round) {
    Bytes gradient = random_gradient(seed_of(static_cast<std::uint64_t>(round), world.rank()), dtype, whole);
    std::optional<std::span<const std::byte>> sends;
    if (round == 0 || world.rank() != 1) sends = gradient;
    folded.results.push_back(
        world.reduce_scatter({.what = "h.3", .unit = 4, .step = 7}, dtype, parts, sends, folded.sum,
                             {.started = round > 0, .last = round > 0},
                             round > 0 ? std::span(folded.block_sums) : std::span<double>()));
    std::ranges::fill(gradient, std::byte{0xFF});  // NaN: nobody may still be reading it
  }
  return folded;
}

TEST_P(MpiCommunicatorTest, AFoldOfManyTilesGivesTheBitsOfTheLocalOne) {
  run_job([](Communicator& world) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      const Folded mine = fold_two_rounds(world, dtype);
      auto local = make_local_world(world.size());
      std::vector<Folded> wanted(local.size());
      std::vector<std::thread> threads;
      for (std::size_t r = 0; r < local.size(); ++r) {
        threads.emplace_back([&, r] { wanted[r] = fold_two_rounds(*local[r], dtype); });
      }
      for (std::thread& thread : threads) thread.join();
      EXPECT_TRUE(mine == wanted[at(world.rank())]);
      ASSERT_EQ(mine.results.size(), 2u);
      EXPECT_EQ(mine.results[1].contributions, world.size() == 1 ? 1 : world.size() - 1);
    }
  });
}

TEST_P(MpiCommunicatorTest, ManyNumbersAreReducedInOrder) {
  run_job([](Communicator& world) {
    constexpr std::size_t kNumel = 700'001;  // 5.6 MB: several tiles from 3 ranks on
    std::vector<double> in(kNumel), out(kNumel), want(kNumel);
    for (int r = 0; r < world.size(); ++r) {
      std::mt19937_64 random(at(r) + 1);
      for (std::size_t i = 0; i < kNumel; ++i) {
        const double value =
            std::ldexp(static_cast<double>(random() % 1000), static_cast<int>(random() % 60));
        want[i] = r == 0 ? value : want[i] + value;
        if (r == world.rank()) in[i] = value;
      }
    }
    world.all_reduce({}, in, out);
    EXPECT_TRUE(out == want);
  });
}

// MPI counts elements in int: what is longer than 16 MiB travels in pieces.
TEST_P(MpiCommunicatorTest, LongPartsTravelInPieces) {
  for (const int ranks : {2, 3}) {
    run_ranks(ranks, [](Communicator& world) {
      const std::vector<std::uint64_t> lengths = {2 * 16 * kMiB + 3, 16 * kMiB, 16 * kMiB - 1};
      const std::vector<Part> parts = consecutive_parts(std::span(lengths).first(at(world.size())));
      Bytes out(parts.back().offset + parts.back().numel);
      const Bytes mine = random_bytes(seed_of(1, world.rank()), parts[at(world.rank())].numel);
      world.all_gather({}, WireType::u8, parts, mine, out);
      for (int r = 0; r < world.size(); ++r) {
        const Part& part = parts[at(r)];
        const Bytes want = random_bytes(seed_of(1, r), part.numel);
        EXPECT_TRUE(std::ranges::equal(std::span(out).subspan(part.offset, part.numel), want))
            << "part " << r;
      }
    });
  }
}

TEST_P(MpiCommunicatorTest, OnlyTheFoldBufferIsAllocated) {
  run_job([](Communicator& world) {
    constexpr std::uint64_t kNumel = 2'000'000;
    const auto n = at(world.size());
    const std::vector<Part> parts = equal_parts(world.size(), kNumel);
    const std::vector<bf16> whole(n * kNumel), mine(kNumel);
    Bytes out(n * kNumel * 2);
    std::vector<float> sum(kNumel);
    std::vector<double> block_sums(kNumel / 4096 + 1);
    world.barrier({});
    forget_allocations();
    world.all_gather({}, WireType::bf16, parts, bytes_of(mine), out);
    world.all_to_all({}, WireType::bf16, parts, bytes_of(whole), parts, out);
    world.broadcast({}, WireType::u8, 0, out);
    world.gather({}, WireType::bf16, 0, parts, bytes_of(mine), out);
    EXPECT_LE(largest_allocation(), 64u * 1024);  // also of MPI's own thread
    forget_allocations();
    world.reduce_scatter({}, DType::bf16, parts, bytes_of(whole), sum, {.last = true}, block_sums);
    EXPECT_LE(largest_allocation(), std::max<std::uint64_t>(mpi_fold_buffer_bytes(world.size()), 64 * 1024));
    forget_allocations();
    world.reduce_scatter({}, DType::bf16, parts, bytes_of(whole), sum, {.last = true}, block_sums);
    EXPECT_LE(largest_allocation(), 64u * 1024);
    world.barrier({});
  });
}

TEST_P(MpiCommunicatorTest, TheFoldBufferIsOfEightMiBForAnyUsualNumberOfRanks) {
  EXPECT_EQ(mpi_fold_buffer_bytes(1), 0u);
  for (int ranks = 2; ranks <= 65; ++ranks) {
    EXPECT_LE(mpi_fold_buffer_bytes(ranks), 8 * kMiB);
    EXPECT_GE(mpi_fold_buffer_bytes(ranks), 4 * kMiB);
  }
  EXPECT_EQ(mpi_fold_buffer_bytes(129), 2 * 128 * 64 * kKiB);
}

// The processor time of a rank that waits, against the time that it waited: spinning would be all of it.
TEST_P(MpiCommunicatorTest, WaitingLeavesTheCoreToOthers) {
  run_job([](Communicator& world) {
    if (world.size() == 1) return;
    world.barrier({});
    if (world.rank() == 0) {
      std::this_thread::sleep_for(milliseconds(1000));
      world.barrier({});
      return;
    }
    const std::clock_t cpu = std::clock();
    const auto start = std::chrono::steady_clock::now();
    world.barrier({});
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
    const double used = static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC;
    EXPECT_LT(used, 0.3 * waited.count()) << "of " << waited.count() << " s";
  });
}

TEST_P(MpiCommunicatorTest, OtherOptionsOnOneRankAreNamedOnAll) {
  run_job([](Communicator& world) {
    if (world.size() == 1) return;
    const auto limit = milliseconds(world.rank() == 1 ? 20'001 : 20'000);
    const auto other = make_mpi_world({.time_limit = limit});
    const std::string error = error_of([&] { other->barrier({}); });
    EXPECT_THAT(error, StartsWith("invalid argument: rank "));
    EXPECT_THAT(error, HasSubstr("20001 ms"));
    EXPECT_THAT(error, HasSubstr("20000 ms"));
    EXPECT_THAT(error, HasSubstr("rank 1 "));
  });
}

TEST_P(MpiCommunicatorTest, WorldsLiveSideBySideAndAfterAFailure) {
  run_job([](Communicator& world) {
    const auto first = make_mpi_world(), second = make_mpi_world();
    first->abort("done with it");
    EXPECT_THAT(error_of([&] { first->barrier({}); }), HasSubstr("failed: done with it; "));
    for (Communicator* const each : {second.get(), &world}) {
      std::uint64_t one = 1, sum = 0;
      each->all_reduce({}, ReduceOp::sum, std::span<const std::uint64_t>(&one, 1), std::span(&sum, 1));
      EXPECT_EQ(sum, at(world.size()));
    }
  });
}

TEST_P(MpiCommunicatorTest, AWorldThatEndedBeforeARankMadeItHasEndedForItToo) {
  run_job([](Communicator& world) {
    if (world.size() == 1) return;
    std::unique_ptr<Communicator> early;
    if (world.rank() == 1) {
      early = make_mpi_world();
      early->abort("too soon");
    }
    world.barrier({});
    if (world.rank() != 1) early = make_mpi_world();
    EXPECT_THAT(error_of([&] { early->barrier({}); }), StartsWith("cancelled: rank 1 failed: too soon; "));
  });
}

TEST_P(MpiCommunicatorTest, WrongOptionsAreRefused) {
  const auto error = [](const CommunicatorOptions& options) {
    return error_of([&] { make_mpi_world(options); });
  };
  EXPECT_THAT(error({.time_limit = milliseconds(0)}), HasSubstr("wanted a time limit of 1 ms to 1 day"));
  EXPECT_THAT(error({.time_limit = std::chrono::hours(25)}), HasSubstr("to 1 day, got 90000000 ms"));
  EXPECT_THAT(error({.link_gbps = -1}), HasSubstr("wanted a link of 0 GB/s or more, got -1"));
}

INSTANTIATE_TEST_SUITE_P(Mpi, MpiCommunicatorTest, testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace terrace
