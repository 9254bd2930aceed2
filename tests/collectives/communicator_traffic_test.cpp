// What every Communicator counts: bytes sent to and received from other ranks, against the closed forms.
#include <gtest/gtest.h>

#include "src/plan/closed_form.h"
#include "tests/collectives/mesh.h"
#include "tests/collectives/ranks.h"
#include "tests/collectives/values.h"

namespace terrace {
namespace {

using Bytes = std::vector<std::byte>;

class CommunicatorTraffic : public CommunicatorSuite {};

void gather_parameters(Communicator& group, std::uint64_t numel) {
  const std::vector<Part> parts = equal_parts(group.size(), numel / at(group.size()));
  const Bytes mine(parts[0].numel * 2);
  Bytes out(numel * 2);
  group.all_gather({}, WireType::bf16, parts, mine, out);
}

void reduce_gradients(Communicator& group, std::uint64_t numel, bool started) {
  const std::vector<Part> parts = equal_parts(group.size(), numel / at(group.size()));
  const Bytes gradient(numel * 2);
  std::vector<float> sum(parts[0].numel);
  group.reduce_scatter({}, DType::bf16, parts, gradient, sum, {.started = started});
}

void expect_both_ways(const CommunicatorStats::Traffic& traffic, std::uint64_t calls, std::uint64_t bytes) {
  EXPECT_EQ(traffic.calls, calls);
  EXPECT_EQ(traffic.sent_bytes, bytes);
  EXPECT_EQ(traffic.received_bytes, bytes);
}

TEST_P(CommunicatorTraffic, AStepSendsWhatTheClosedFormsSay) {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (const std::uint64_t m : {1, 3}) {
      run_ranks(ranks, [&](Communicator& world) {
        const std::uint64_t p = 840 * 3, n = at(ranks);
        for (std::uint64_t k = 0; k < m; ++k) {  // stage 3: gathered for forward and for backward
          gather_parameters(world, p);
          gather_parameters(world, p);
          reduce_gradients(world, p, k > 0);
        }
        EXPECT_EQ(world.stats().total().sent_bytes, 2 * sent_numel(Stage::parameters, p, n, m));
        expect_both_ways(world.stats().of(CollectiveKind::all_gather), 2 * m, 2 * (2 * m * p * (n - 1) / n));
        expect_both_ways(world.stats().of(CollectiveKind::reduce_scatter), m, 2 * (m * p * (n - 1) / n));
      });
      run_ranks(ranks, [&](Communicator& world) {
        const std::uint64_t p = 840 * 3;
        for (std::uint64_t k = 0; k < m; ++k) reduce_gradients(world, p, k > 0);
        gather_parameters(world, p);  // stages 0 to 2: once, after the update
        EXPECT_EQ(world.stats().total().sent_bytes, 2 * sent_numel(Stage::gradients, p, at(ranks), m));
        EXPECT_EQ(world.stats().total().received_bytes, world.stats().total().sent_bytes);
      });
    }
  }
}

TEST_P(CommunicatorTraffic, AHybridStepSendsWhatTheClosedFormSays) {
  for (const Mesh mesh : {Mesh{1, 4}, Mesh{2, 2}, Mesh{4, 1}, Mesh{2, 4}, Mesh{4, 2}, Mesh{2, 3}}) {
    run_ranks(mesh.size(), [&](Communicator& world) {
      const auto shards = world.split(mesh.shard_group(world.rank()), "shards");
      const auto replicas = world.split(mesh.replicate_group(world.rank()), "replicas");
      const std::uint64_t p = 840 * 8, m = 2, n = at(mesh.size()), s = at(mesh.shards), r = at(mesh.replicas);
      for (std::uint64_t k = 0; k < m; ++k) {
        gather_parameters(*shards, p);
        gather_parameters(*shards, p);
        reduce_gradients(world, p, k > 0);
      }
      gather_parameters(*replicas, p / s);  // each rank's P/N rounded sums to the other replicas
      const std::uint64_t sent = world.stats().total().sent_bytes + shards->stats().total().sent_bytes +
                                 replicas->stats().total().sent_bytes;
      EXPECT_EQ(sent, 2 * hybrid_sent_numel(p, s, r, m)) << s << " x " << r << " of " << n;
    });
  }
}

TEST_P(CommunicatorTraffic, EachKindIsCounted) {
  run_ranks(3, [](Communicator& world) {
    const int r = world.rank();
    const auto of = [&](CollectiveKind kind) { return world.stats().of(kind); };
    const std::vector<Part> parts = consecutive_parts(std::vector<std::uint64_t>{5, 0, 7});
    const Bytes mine(parts[at(r)].numel * 4);
    Bytes out(48);
    world.all_gather({}, WireType::f32, parts, mine, out);
    EXPECT_EQ(of(CollectiveKind::all_gather).sent_bytes, parts[at(r)].numel * 4 * 2);
    EXPECT_EQ(of(CollectiveKind::all_gather).received_bytes, (12 - parts[at(r)].numel) * 4);
    world.gather({}, WireType::f32, 2, parts, mine, out);
    EXPECT_EQ(of(CollectiveKind::gather).sent_bytes, r == 2 ? 0 : parts[at(r)].numel * 4);
    EXPECT_EQ(of(CollectiveKind::gather).received_bytes, r == 2 ? 20u : 0u);
    world.broadcast({}, WireType::u8, 1, out);
    EXPECT_EQ(of(CollectiveKind::broadcast).sent_bytes, r == 1 ? 96u : 0u);
    EXPECT_EQ(of(CollectiveKind::broadcast).received_bytes, r == 1 ? 0u : 48u);
    const std::vector<double> in(6);
    std::vector<double> sum(6);
    world.all_reduce({}, in, sum);
    EXPECT_EQ(of(CollectiveKind::all_reduce).sent_bytes, 96u);
    EXPECT_EQ(of(CollectiveKind::all_reduce).received_bytes, 96u);
    // Rank 1 is absent: it sends nothing, and nothing comes from it.
    std::optional<std::span<const std::byte>> sends;
    if (r != 1) sends = out;
    Bytes in_bytes(48);
    world.all_to_all({}, WireType::u8, equal_parts(3, 4), sends, equal_parts(3, 4), in_bytes);
    EXPECT_EQ(of(CollectiveKind::all_to_all).sent_bytes, r == 1 ? 0u : 8u);
    EXPECT_EQ(of(CollectiveKind::all_to_all).received_bytes, r == 1 ? 8u : 4u);
    std::vector<float> accumulator(parts[at(r)].numel);
    world.reduce_scatter({}, DType::f32, parts, sends, accumulator, {});
    EXPECT_EQ(of(CollectiveKind::reduce_scatter).sent_bytes, r == 1 ? 0 : (12 - parts[at(r)].numel) * 4);
    EXPECT_EQ(of(CollectiveKind::reduce_scatter).received_bytes, parts[at(r)].numel * 4);  // 0 for rank 1
    world.barrier({});
    world.split({}, "");
    expect_both_ways(of(CollectiveKind::barrier), 1, 0);
    expect_both_ways(of(CollectiveKind::split), 1, 0);
    EXPECT_EQ(world.stats().total().calls, 8u);
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, CommunicatorTraffic, testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace terrace
