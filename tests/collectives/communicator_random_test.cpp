// Random sequences of collectives on random groups, each checked against a plain reference. What happens is
// drawn from a seed that all ranks share.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "tests/collectives/ranks.h"
#include "tests/collectives/values.h"

namespace terrace {
namespace {

using Bytes = std::vector<std::byte>;

class CommunicatorRandom : public CommunicatorSuite {};

// A group, and the seed of what happens in it: the same on all its members.
struct Drawn {
  Communicator& group;
  std::uint64_t number;
  std::mt19937_64 random;
  CollectiveLabel label{};

  int me() const { return group.rank(); }
  int size() const { return group.size(); }
  WireType type() { return kWireTypes[random() % std::size(kWireTypes)]; }
  int rank() { return static_cast<int>(random() % at(size())); }
  Bytes data(int r, std::uint64_t bytes) const { return random_bytes(seed_of(number, r), bytes); }
};

std::ptrdiff_t offset(const Part& part, WireType type) {
  return static_cast<std::ptrdiff_t>(part.offset * wire_bytes(type));
}

void all_gather_or_gather(Drawn& d, bool to_all) {
  const WireType type = d.type();
  const int root = d.rank();
  const Layout layout = scattered(d.random, random_numels(d.random, d.size()));
  Bytes want(layout.numel * wire_bytes(type), kUntouched), out = want;
  for (int r = 0; r < d.size(); ++r) {
    std::ranges::copy(d.data(r, layout.parts[at(r)].numel * wire_bytes(type)),
                      want.begin() + offset(layout.parts[at(r)], type));
  }
  Bytes mine = d.data(d.me(), layout.parts[at(d.me())].numel * wire_bytes(type));
  if (to_all) {
    d.group.all_gather(d.label, type, layout.parts, mine, out);
  } else {
    d.group.gather(d.label, type, root, layout.parts, mine, out);
    if (d.me() != root) std::ranges::fill(want, kUntouched);
  }
  std::ranges::fill(mine, std::byte{0xEE});
  ASSERT_EQ(out, want);
}

void all_to_all(Drawn& d) {
  const WireType type = d.type();
  const std::uint64_t bytes = wire_bytes(type);
  std::vector<std::vector<Part>> sends;
  std::vector<std::uint64_t> spans, arriving;
  std::vector<bool> present;
  for (int r = 0; r < d.size(); ++r) {
    const Layout layout = scattered(d.random, random_numels(d.random, d.size()));
    sends.push_back(layout.parts);
    spans.push_back(layout.numel);
    arriving.push_back(layout.parts[at(d.me())].numel);
    present.push_back(d.random() % 4 != 0);
  }
  const std::vector<Part> receives = consecutive_parts(arriving);
  Bytes want, in(std::accumulate(arriving.begin(), arriving.end(), std::uint64_t{0}) * bytes, kUntouched);
  for (int r = 0; r < d.size(); ++r) {
    const Bytes sent = d.data(r, spans[at(r)] * bytes);
    const auto begin = sent.begin() + offset(sends[at(r)][at(d.me())], type);
    Bytes part(begin, begin + static_cast<std::ptrdiff_t>(arriving[at(r)] * bytes));
    if (!present[at(r)]) std::ranges::fill(part, kUntouched);
    want.insert(want.end(), part.begin(), part.end());
  }
  Bytes out = d.data(d.me(), spans[at(d.me())] * bytes);
  std::optional<std::span<const std::byte>> mine;
  if (present[at(d.me())]) mine = out;
  ASSERT_EQ(d.group.all_to_all(d.label, type, sends[at(d.me())], mine, receives, in), present);
  std::ranges::fill(out, std::byte{0xEE});
  ASSERT_EQ(in, want);
}

void reduce_scatter(Drawn& d) {
  const DType dtype = kGradientTypes[d.random() % 3];
  const Layout layout = scattered(d.random, random_numels(d.random, d.size()));
  std::vector<Bytes> contributions;
  Bytes gradient;
  std::optional<std::span<const std::byte>> mine;
  for (int r = 0; r < d.size(); ++r) {
    if (d.random() % 4 == 0) continue;
    contributions.push_back(random_gradient(seed_of(d.number, r), dtype, layout.numel));
    if (r != d.me()) continue;
    gradient = contributions.back();
    mine = gradient;
  }
  const Part& part = layout.parts[at(d.me())];
  std::vector<float> sum(part.numel, 5.0f);
  const FoldResult result = d.group.reduce_scatter(d.label, dtype, layout.parts, mine, sum, {});
  std::ranges::fill(gradient, std::byte{0xFF});
  ASSERT_EQ(result.contributions, static_cast<int>(contributions.size()));
  for (std::uint64_t i = 0; i < part.numel; ++i) {
    ASSERT_EQ(sum[i],
              contributions.empty() ? 5.0f : plain_fold(contributions, dtype, part.offset + i, false));
  }
}

void broadcast(Drawn& d) {
  const WireType type = d.type();
  const int root = d.rank();
  const std::uint64_t bytes = random_numels(d.random, 1)[0] * wire_bytes(type);
  Bytes data = d.data(d.me(), bytes);
  d.group.broadcast(d.label, type, root, data);
  ASSERT_EQ(data, d.data(root, bytes));
  std::ranges::fill(data, std::byte{0xEE});
}

void all_reduce(Drawn& d) {
  std::vector<std::uint64_t> in, want(d.random() % 9, 0), out(want.size());
  const ReduceOp op = d.random() % 2 == 0 ? ReduceOp::sum : ReduceOp::max;
  for (int r = 0; r < d.size(); ++r) {
    std::mt19937_64 values(seed_of(d.number, r));
    for (std::uint64_t& sum : want) {
      const std::uint64_t value = values();
      sum = op == ReduceOp::sum ? sum + value : std::max(sum, value);
      if (r == d.me()) in.push_back(value);
    }
  }
  d.group.all_reduce(d.label, op, std::span<const std::uint64_t>(in), out);
  ASSERT_EQ(out, want);
}

void one_collective(Communicator& group, std::uint64_t number) {
  Drawn d{group, number, std::mt19937_64(number), {.what = "unit", .unit = 1, .step = number}};
  switch (d.random() % 8) {
    case 0:
    case 1:
      return all_gather_or_gather(d, true);
    case 2:
      return all_gather_or_gather(d, false);
    case 3:
      return all_to_all(d);
    case 4:
      return reduce_scatter(d);
    case 5:
      return broadcast(d);
    case 6:
      return all_reduce(d);
    default:
      return group.barrier(d.label);
  }
}

// A random partition of the group's ranks; this rank's list, in random order.
std::vector<int> random_list(std::mt19937_64& random, const Communicator& group) {
  std::vector<int> ranks(at(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::shuffle(ranks.begin(), ranks.end(), random);
  for (std::size_t begin = 0; begin < ranks.size();) {
    const std::size_t count = std::min<std::size_t>(1 + random() % ranks.size(), ranks.size() - begin);
    const auto list = std::span(ranks).subspan(begin, count);
    if (std::ranges::find(list, group.rank()) != list.end()) return {list.begin(), list.end()};
    begin += count;
  }
  return {};
}

void random_sequence(Communicator& world, std::uint64_t seed) {
  std::mt19937_64 random(seed), late(seed_of(seed, world.rank()));
  std::vector<std::unique_ptr<Communicator>> groups;
  for (int i = 0; i < 3; ++i) {
    Communicator& parent = i == 2 ? *groups[0] : world;
    std::mt19937_64 shared(seed * 10 + static_cast<std::uint64_t>(i));  // by all members of the parent
    const std::vector<int> list = random_list(shared, parent);
    groups.push_back(parent.split(list, "group " + std::to_string(list.front())));
  }
  for (std::uint64_t i = 0; i < 60; ++i) {
    const std::uint64_t pick = random() % 4;
    Communicator& group = pick == 3 ? world : *groups[pick];
    if (late() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(late() % 500));
    // Groups of one split draw apart: what happens differs with the group's first rank.
    one_collective(group, seed * 100'000 + i * 64 + static_cast<std::uint64_t>(group.world_ranks().front()));
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST_P(CommunicatorRandom, SequencesOnRandomGroups) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      run_ranks(ranks, [&](Communicator& world) {
        SCOPED_TRACE("ranks " + std::to_string(ranks) + " seed " + std::to_string(seed));
        random_sequence(world, seed + 1);
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, CommunicatorRandom, testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace terrace
