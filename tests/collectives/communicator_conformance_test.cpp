// What every Communicator must do with data that is only moved.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <thread>

#include "tests/collectives/ranks.h"
#include "tests/collectives/values.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

constexpr int kWorlds[] = {1, 2, 3, 4, 5, 8};

class CommunicatorConformance : public CommunicatorSuite {};

CollectiveLabel label_of(std::uint64_t step) {
  return {.what = "h.3", .unit = 4, .step = step};
}

// Lengths of parts for one world: equal ones around every border, and unequal ones.
std::vector<std::vector<std::uint64_t>> length_cases(int ranks) {
  std::vector<std::vector<std::uint64_t>> cases;
  for (const std::uint64_t numel : {0, 1, 2, 15, 16, 17, 63, 64, 65, 997, 4095, 4096, 4097, 65537}) {
    cases.emplace_back(at(ranks), numel);
  }
  for (int r = 0; r < ranks; ++r) {
    cases.emplace_back(at(ranks), 0);  // one rank has all
    cases.back()[at(r)] = 1009;
  }
  std::mt19937_64 random(static_cast<std::uint64_t>(ranks));
  for (int i = 0; i < 6; ++i) cases.push_back(random_numels(random, ranks));
  return cases;
}

void check_all_gather(Communicator& world, const std::vector<std::uint64_t>& numels, WireType type,
                      bool in_place, std::uint64_t number) {
  std::mt19937_64 random(number);
  const std::uint64_t bytes = wire_bytes(type);
  const Layout layout = scattered(random, numels);
  Bytes want(layout.numel * bytes, kUntouched), out = want;
  for (int r = 0; r < world.size(); ++r) {
    const Bytes part = random_bytes(seed_of(number, r), numels[at(r)] * bytes);
    std::ranges::copy(part, want.begin() + static_cast<std::ptrdiff_t>(layout.parts[at(r)].offset * bytes));
  }
  Bytes mine = random_bytes(seed_of(number, world.rank()), numels[at(world.rank())] * bytes);
  std::span<std::byte> send = mine;
  if (in_place) {
    send = std::span(out).subspan(layout.parts[at(world.rank())].offset * bytes, mine.size());
    std::ranges::copy(mine, send.begin());
  }
  world.all_gather(label_of(number), type, layout.parts, send, out);
  if (!in_place) std::ranges::fill(mine, std::byte{0xEE});  // at once: nobody may still be reading it
  ASSERT_EQ(out, want) << world.size() << " ranks, case " << number;
}

TEST_P(CommunicatorConformance, AllGatherOfEveryLengthAndType) {
  for (const int ranks : kWorlds) {
    run_ranks(ranks, [&](Communicator& world) {
      std::uint64_t number = 0;
      for (const auto& numels : length_cases(ranks)) {
        for (const WireType type : kWireTypes) {
          if (numels[0] > 10'000 && wire_bytes(type) > 2) continue;  // the references take the time
          check_all_gather(world, numels, type, number % 2 == 0, number);
          ++number;
        }
      }
    });
  }
}

TEST_P(CommunicatorConformance, LargePartsAreWholeAndTheirMemoryIsFreeAtOnce) {
  for (const int ranks : {2, 4}) {
    run_ranks(ranks, [&](Communicator& world) {
      for (std::uint64_t i = 0; i < 4; ++i) {
        check_all_gather(world, std::vector<std::uint64_t>(at(ranks), 400'000 + i), WireType::bf16,
                         i % 2 == 0, i);
      }
    });
  }
}

// numels[r][q]: from rank r to rank q.
void check_all_to_all(Communicator& world, const std::vector<std::vector<std::uint64_t>>& numels,
                      const std::vector<bool>& present, WireType type, std::uint64_t number) {
  const int me = world.rank();
  const std::uint64_t bytes = wire_bytes(type);
  const auto offset_of = [&](const Layout& layout, int r) { return layout.parts[at(r)].offset * bytes; };
  const auto send_layout = [&](int r) {
    std::mt19937_64 random(seed_of(number, r));
    return scattered(random, numels[at(r)]);
  };
  std::vector<std::uint64_t> arriving;
  for (int r = 0; r < world.size(); ++r) arriving.push_back(numels[at(r)][at(me)]);
  std::mt19937_64 random(seed_of(number, 100 + me));
  const Layout receive = scattered(random, arriving);
  Bytes want(receive.numel * bytes, kUntouched), in = want;
  for (int r = 0; r < world.size(); ++r) {
    if (!present[at(r)]) continue;
    const Layout from = send_layout(r);
    const Bytes sent = random_bytes(seed_of(number, r), from.numel * bytes);
    std::copy_n(sent.begin() + static_cast<std::ptrdiff_t>(offset_of(from, me)), arriving[at(r)] * bytes,
                want.begin() + static_cast<std::ptrdiff_t>(offset_of(receive, r)));
  }
  const Layout mine = send_layout(me);
  Bytes out = random_bytes(seed_of(number, me), mine.numel * bytes);
  std::optional<std::span<const std::byte>> sends;
  if (present[at(me)]) sends = out;
  const std::vector<bool> were_there =
      world.all_to_all(label_of(number), type, mine.parts, sends, receive.parts, in);
  std::ranges::fill(out, std::byte{0xEE});
  ASSERT_EQ(were_there, present) << "case " << number;
  ASSERT_EQ(in, want) << world.size() << " ranks, case " << number;
}

TEST_P(CommunicatorConformance, AllToAllOfUnequalEmptyAndAbsentParts) {
  for (const int ranks : kWorlds) {
    run_ranks(ranks, [&](Communicator& world) {
      std::mt19937_64 random(static_cast<std::uint64_t>(ranks));
      for (std::uint64_t number = 0; number < 40; ++number) {
        std::vector<std::vector<std::uint64_t>> numels;
        std::vector<bool> present;
        for (int r = 0; r < ranks; ++r) {
          numels.push_back(random_numels(random, ranks));
          // All present, all absent, and all between.
          present.push_back(number % 5 == 0 || (number % 5 != 1 && random() % 2 == 0));
        }
        check_all_to_all(world, numels, present, kWireTypes[number % std::size(kWireTypes)], number);
      }
    });
  }
}

TEST_P(CommunicatorConformance, AnAbsentRankNeedsNoPartsToSend) {
  run_ranks(3, [](Communicator& world) {
    const std::vector<Part> parts = equal_parts(3, 2);
    const Bytes out(6, std::byte{1});
    Bytes in(6, kUntouched);
    const bool absent = world.rank() == 1;
    const std::vector<bool> present =
        world.all_to_all(label_of(0), WireType::u8, absent ? std::span<const Part>() : parts,
                         absent ? std::nullopt : std::optional<std::span<const std::byte>>(out), parts, in);
    EXPECT_EQ(present, (std::vector<bool>{true, false, true}));
    EXPECT_EQ(in, (Bytes{std::byte{1}, std::byte{1}, kUntouched, kUntouched, std::byte{1}, std::byte{1}}));
  });
}

TEST_P(CommunicatorConformance, BroadcastFromEveryRoot) {
  for (const int ranks : kWorlds) {
    run_ranks(ranks, [&](Communicator& world) {
      std::uint64_t number = 0;
      for (int root = 0; root < ranks; ++root) {
        for (const std::uint64_t numel : {0, 1, 17, 4097}) {
          const WireType type = kWireTypes[number % std::size(kWireTypes)];
          const Bytes want = random_bytes(seed_of(number, root), numel * wire_bytes(type));
          Bytes data = random_bytes(seed_of(number, world.rank()), want.size());
          world.broadcast(label_of(number), type, root, data);
          ASSERT_EQ(data, want) << "root " << root << " of " << ranks;
          std::ranges::fill(data, std::byte{0xEE});
          ++number;
        }
      }
    });
  }
}

TEST_P(CommunicatorConformance, GatherToEveryRoot) {
  for (const int ranks : kWorlds) {
    run_ranks(ranks, [&](Communicator& world) {
      std::mt19937_64 random(7);
      for (std::uint64_t number = 0; number < 24; ++number) {
        const int root = static_cast<int>(number) % ranks;
        const bool in_place = number % 3 == 0;
        const WireType type = kWireTypes[number % std::size(kWireTypes)];
        const std::uint64_t bytes = wire_bytes(type);
        const Layout layout = scattered(random, random_numels(random, ranks));
        Bytes want(layout.numel * bytes, kUntouched), out = want;
        for (int r = 0; r < ranks; ++r) {
          const Bytes part = random_bytes(seed_of(number, r), layout.parts[at(r)].numel * bytes);
          std::ranges::copy(part,
                            want.begin() + static_cast<std::ptrdiff_t>(layout.parts[at(r)].offset * bytes));
        }
        const Part& place = layout.parts[at(world.rank())];
        Bytes mine = random_bytes(seed_of(number, world.rank()), place.numel * bytes);
        std::span<std::byte> send = mine;
        if (world.rank() != root) {
          world.gather(label_of(number), type, root, layout.parts, send, {});
        } else {
          if (in_place) {
            send = std::span(out).subspan(place.offset * bytes, mine.size());
            std::ranges::copy(mine, send.begin());
          }
          world.gather(label_of(number), type, root, layout.parts, send, out);
          ASSERT_EQ(out, want) << "case " << number << " of " << ranks;
        }
        std::ranges::fill(mine, std::byte{0xEE});
      }
    });
  }
}

TEST_P(CommunicatorConformance, IntegersAreSummedAndCompared) {
  for (const int ranks : kWorlds) {
    run_ranks(ranks, [&](Communicator& world) {
      for (const std::size_t numel : {0, 1, 3, 100}) {
        std::vector<std::uint64_t> in(numel), sum(numel), max(numel), want_sum(numel), want_max(numel);
        std::vector<std::int64_t> low(numel), low_sum(numel), low_max(numel), want_low(numel),
            want_low_max(numel, std::numeric_limits<std::int64_t>::min());
        for (int r = 0; r < ranks; ++r) {
          std::mt19937_64 random(seed_of(numel, r));
          for (std::size_t i = 0; i < numel; ++i) {
            const std::uint64_t value = random();  // of all sizes: sums pass 2^64
            const std::int64_t small = static_cast<std::int64_t>(value) / 16;
            want_sum[i] += value;
            want_max[i] = std::max(want_max[i], value);
            want_low[i] += small;
            want_low_max[i] = std::max(want_low_max[i], small);
            if (r != world.rank()) continue;
            in[i] = value;
            low[i] = small;
          }
        }
        world.all_reduce(label_of(numel), ReduceOp::sum, std::span<const std::uint64_t>(in), sum);
        world.all_reduce(label_of(numel), ReduceOp::max, std::span<const std::uint64_t>(in), max);
        world.all_reduce(label_of(numel), ReduceOp::sum, std::span<const std::int64_t>(low), low_sum);
        world.all_reduce(label_of(numel), ReduceOp::max, std::span<const std::int64_t>(low), low_max);
        EXPECT_EQ(sum, want_sum);
        EXPECT_EQ(max, want_max);
        EXPECT_EQ(low_sum, want_low);
        EXPECT_EQ(low_max, want_low_max);
      }
    });
  }
}

TEST_P(CommunicatorConformance, DoublesAreSummedInAscendingRank) {
  constexpr double kValues[] = {1e16, 1.0,  -1e16, 1.0,
                                3e-5, 1e16, 7.0,   -0.1};  // every order gives another sum
  for (const int ranks : kWorlds) {
    run_ranks(ranks, [&](Communicator& world) {
      double want = kValues[0];
      for (int r = 1; r < ranks; ++r) want = want + kValues[r];
      const std::vector<double> in = {kValues[world.rank()], -0.0};
      std::vector<double> out(2, 5.0);
      world.all_reduce(label_of(0), in, out);
      EXPECT_EQ(out[0], want);
      EXPECT_TRUE(std::signbit(out[1]));
    });
  }
}

TEST_P(CommunicatorConformance, ABarrierAndACallAreForEveryOneOfALateRank) {
  for (const int late : {0, 1, 2}) {
    run_ranks(3, [&](Communicator& world) {
      if (world.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      world.barrier(label_of(0));
      if (world.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      check_all_gather(world, {5, 0, 7}, WireType::f32, false, 1);
    });
  }
}

TEST_P(CommunicatorConformance, ThousandsOfCollectivesInARow) {
  run_ranks(4, [](Communicator& world) {
    for (std::uint64_t i = 0; i < 2000; ++i) {
      const std::uint64_t in = i + static_cast<std::uint64_t>(world.rank());
      std::uint64_t out = 0;
      if (i % 3 == 0) world.barrier(label_of(i));
      world.all_reduce(label_of(i), ReduceOp::sum, std::span(&in, 1), std::span(&out, 1));
      ASSERT_EQ(out, 4 * i + 6);
    }
  });
}

// --- groups

TEST_P(CommunicatorConformance, GroupsAreThoseOfTheListsInTheirOrder) {
  run_ranks(5, [](Communicator& world) {
    EXPECT_EQ(world.name(), "world");
    EXPECT_EQ(world.world_rank(), world.rank());
    const std::vector<int> odd = {3, 1}, even = {0, 4};  // rank 2 is in none
    const int r = world.rank();
    const auto group = world.split(r == 2       ? std::vector<int>{}
                                   : r % 2 == 1 ? odd
                                                : even,
                                   r == 2       ? ""
                                   : r % 2 == 1 ? "odd"
                                                : "even");
    if (r == 2) {
      EXPECT_EQ(group, nullptr);
      return;
    }
    const std::vector<int>& list = r % 2 == 1 ? odd : even;
    EXPECT_EQ(group->size(), 2);
    EXPECT_EQ(group->rank(), std::ranges::find(list, r) - list.begin());
    EXPECT_EQ(group->world_rank(), r);
    EXPECT_TRUE(std::ranges::equal(group->world_ranks(), list));
    EXPECT_EQ(group->name(), r % 2 == 1 ? "odd" : "even");
    check_all_gather(*group, {3, 4}, WireType::u64, false, 1);
    const auto alone = group->split(std::vector<int>{group->rank()}, "alone");
    EXPECT_EQ(alone->size(), 1);
    EXPECT_EQ(alone->world_rank(), r);
    check_all_gather(*alone, {17}, WireType::bf16, false, 2);
    check_all_gather(*alone, {17}, WireType::bf16, true, 3);
  });
}

TEST_P(CommunicatorConformance, AGroupOutlivesItsParent) {
  run_ranks(4, [](Communicator& world) {
    const int pair = world.rank() / 2 * 2;
    auto group = world.split(std::vector<int>{0, 1, 2, 3}, "all");
    const auto inner = group->split(std::vector<int>{pair + 1, pair}, "pair");
    group.reset();
    for (std::uint64_t i = 0; i < 10; ++i) check_all_gather(*inner, {i, 2 * i}, WireType::f32, false, i);
  });
}

// --- arguments

TEST_P(CommunicatorConformance, WrongArgumentsAreRefusedBeforeAnybodyNotices) {
  run_ranks(2, [](Communicator& world) {
    const CollectiveLabel label = label_of(7);
    const std::vector<Part> parts = equal_parts(2, 4);
    const std::span<const Part> one(parts.data(), 1);
    Bytes out(32), mine(16);
    std::vector<float> sum(4);
    std::vector<double> sums(1);
    const Bytes gradient(32);
    const auto gather = [&](std::span<const Part> p, std::span<const std::byte> m, std::span<std::byte> o) {
      return error_of([&] { world.all_gather(label, WireType::f32, p, m, o); });
    };
    EXPECT_EQ(gather(one, mine, out),
              "invalid argument: all_gather in group world: wanted 2 output parts, one a rank, got 1");
    EXPECT_EQ(
        gather(parts, std::span(mine).first(15), out),
        "invalid argument: all_gather of h.3 (unit 4, step 7, 8 elements of fp32): wanted 16 bytes, this "
        "rank's part of the output, got 15");
    EXPECT_THAT(gather(parts, mine, std::span(out).first(31)), HasSubstr("within the 7 elements given"));
    const std::vector<Part> endless = {{0, 4}, {~std::uint64_t{0}, 4}};
    if (world.rank() == 0) {
      EXPECT_THAT(gather(endless, mine, out), HasSubstr("output part 1 is 4 elements"));
    }
    EXPECT_THAT(gather(std::vector<Part>{{0, 4}, {3, 4}}, mine, out), HasSubstr("parts 0 and 1 overlap"));
    EXPECT_THAT(gather(parts, std::span(out).subspan(8, 16), out), HasSubstr("overlaps the output"));
    EXPECT_THAT(error_of([&] { world.broadcast(label, WireType::f32, 2, out); }),
                HasSubstr("wanted a root of 0 to 1"));
    EXPECT_THAT(error_of([&] { world.broadcast(label, WireType::f32, -1, out); }), HasSubstr("root"));
    EXPECT_THAT(error_of([&] { world.broadcast(label, WireType::f64, 0, std::span(out).first(31)); }),
                HasSubstr("multiple of 8 bytes"));
    EXPECT_THAT(error_of([&] { world.gather(label, WireType::f32, 9, parts, mine, out); }),
                HasSubstr("root"));
    EXPECT_THAT(error_of([&] { world.all_to_all(label, WireType::f32, one, mine, parts, out); }),
                HasSubstr("2 send parts"));
    EXPECT_THAT(error_of([&] { world.all_to_all(label, WireType::f32, parts, out, parts, out); }),
                HasSubstr("out and in overlap"));
    EXPECT_THAT(
        error_of([&] { world.all_to_all(label, WireType::f32, equal_parts(2, 2), mine, parts, out); }),
        HasSubstr("sends 2 elements to itself and expects 4"));
    const auto fold = [&](std::span<float> s, FoldRound round, std::span<double> b) {
      return error_of([&] { world.reduce_scatter(label, DType::f32, parts, gradient, s, round, b); });
    };
    EXPECT_THAT(fold(std::span(sum).first(3), {}, {}), HasSubstr("accumulator of 4 elements, got 3"));
    EXPECT_THAT(fold(sum, {}, sums), HasSubstr("wanted 0 block sums, got 1"));
    EXPECT_THAT(fold(sum, {.last = true}, {}), HasSubstr("wanted 1 block sums, got 0"));
    std::uint64_t number = 0;
    EXPECT_THAT(error_of([&] {
                  world.all_reduce(label, ReduceOp::sum, std::span<const std::uint64_t>(&number, 1),
                                   std::span(&number, 1));
                }),
                HasSubstr("in and out overlap"));
    EXPECT_THAT(error_of([&] { world.split(std::vector<int>{0, 1, 2}, "x"); }), HasSubstr("ranks of 0 to 1"));
    EXPECT_THAT(error_of([&] {
                  world.split(std::vector<int>{0, 1, 0}, "x");
                }),
                HasSubstr("rank 0 is there twice"));
    EXPECT_THAT(error_of([&] { world.split(std::vector<int>{1 - world.rank()}, "x"); }),
                HasSubstr("which calls, is not among them"));
    check_all_gather(world, {5, 6}, WireType::f32, false, 1);  // nothing has happened
    EXPECT_EQ(world.stats().total().calls, 1u);
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, CommunicatorConformance, testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace terrace
