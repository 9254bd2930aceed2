// What an engine's ranks do together: their groups, what processes agree on, all states at once.
#include <array>
#include <cmath>
#include <mutex>

#include "src/base/fail.h"
#include "src/checkpoint/state_hash.h"
#include "src/collectives/local_communicator.h"
#include "src/engine/engine.h"

namespace terrace {

void Engine::make_groups(const Config& config) {
  if (ranks() == 1) return;
  std::vector<std::unique_ptr<Communicator>> handles;
  if (world_) {
    handles.push_back(std::move(world_));
  } else {
    handles = make_local_world(static_cast<int>(ranks()), communicator_options(config));
  }
  threads_->run([&](std::uint32_t rank) {
    ranks_[rank].groups = make_rank_groups(std::move(handles[rank]), ranks_[rank].plan.ranks);
  });
}

// Where ranks are processes; null where they are threads of one.
Communicator* Engine::processes() const {
  if (world_) return world_.get();
  return !ranks_.empty() && local_ranks() < ranks() ? ranks_[0].groups.world.get() : nullptr;
}

std::uint64_t Engine::sum_of_processes(std::uint64_t value) {
  if (Communicator* world = processes()) {
    const std::uint64_t own = value;
    world->all_reduce({"a count", kNoUnit, 0}, ReduceOp::sum, std::span(&own, 1), std::span(&value, 1));
  }
  return value;
}

std::uint64_t Engine::largest_of_processes(std::uint64_t value) {
  if (Communicator* world = processes()) {
    const std::uint64_t own = value;
    world->all_reduce({"a decision", kNoUnit, 0}, ReduceOp::max, std::span(&own, 1), std::span(&value, 1));
  }
  return value;
}

HostOverhead Engine::largest_of_processes(const HostOverhead& overhead) {
  Communicator* world = processes();
  if (world == nullptr) return overhead;
  static constexpr std::array kLines{&HostOverhead::library_bytes, &HostOverhead::scratch_bytes,
                                     &HostOverhead::token_bytes,   &HostOverhead::program_bytes,
                                     &HostOverhead::table_bytes,   &HostOverhead::rounding_bytes,
                                     &HostOverhead::copy_bytes};
  static_assert(sizeof(HostOverhead) == kLines.size() * sizeof(std::uint64_t));
  std::array<std::uint64_t, kLines.size()> own{}, largest{};
  for (std::size_t i = 0; i < kLines.size(); ++i) own[i] = overhead.*kLines[i];
  world->all_reduce({"host overhead", kNoUnit, 0}, ReduceOp::max, std::span<const std::uint64_t>(own),
                    std::span<std::uint64_t>(largest));
  HostOverhead all;
  for (std::size_t i = 0; i < kLines.size(); ++i) all.*kLines[i] = largest[i];
  return all;
}

std::vector<double> Engine::join_processes(std::vector<double> values) {
  if (Communicator* world = processes()) {
    const std::vector<double> own = values;
    world->all_reduce({"losses", kNoUnit, 0}, own, values);
  }
  return values;
}

void Engine::visit(const std::function<void(std::uint32_t rank, const ChunkState&)>& visit) {
  std::mutex one_at_a_time;
  threads_->run([&](std::uint32_t rank) {
    const std::lock_guard lock(one_at_a_time);
    const std::uint32_t global = ranks_[rank].plan.rank;
    ranks_[rank].runtime->visitor = [&, global](const ChunkState& state) { visit(global, state); };
    ranks_[rank].runtime->run(ProgramKind::visit, {});
  });
}

std::string Engine::state_hash() {
  const RankTable& table = plan().ranks;
  // By rank: the sum over the chunks that it holds, and over those that it owns.
  std::vector<Hash128> held(ranks()), owned(ranks());
  visit([&](std::uint32_t rank, const ChunkState& state) {
    StateHash hash(model_.shape, plan().chunks);
    hash.add(state);
    held[rank] += hash.value();
    if (table.owner(state.chunk) == rank) owned[rank] += hash.value();
  });
  if (Communicator* all = processes()) {
    const auto own = first_rank();
    const std::array<std::uint64_t, 4> mine{held[own].low, held[own].high, owned[own].low, owned[own].high};
    std::vector<std::uint64_t> numbers(4 * ranks());
    all->all_gather({"hashes of states", kNoUnit, 0}, WireType::u64, equal_parts(all->size(), 4),
                    std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(numbers)));
    for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
      held[rank] = {numbers[4 * rank], numbers[4 * rank + 1]};
      owned[rank] = {numbers[4 * rank + 2], numbers[4 * rank + 3]};
    }
  }
  Hash128 sum;
  std::vector<Hash128> of_shard(table.shape().shard_size());
  for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
    sum += owned[rank];
    of_shard[rank % of_shard.size()] += owned[rank];
  }
  for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
    check(held[rank] == of_shard[rank % of_shard.size()],
          "rank {} holds other states than the ranks that own them", rank);
  }
  return to_hex(sum);
}

CommunicatorStats::Traffic Engine::sent() const {
  const RankGroups& groups = ranks_[0].groups;
  CommunicatorStats::Traffic sum;
  for (const auto* group :
       {groups.world.get(), groups.shard.get(), groups.replicate.get(), groups.commit.get()}) {
    if (group == nullptr) continue;
    const CommunicatorStats& stats = group->stats();
    const CommunicatorStats::Traffic own = stats.total();
    sum.calls += own.calls - stats.of(CollectiveKind::barrier).calls - stats.of(CollectiveKind::split).calls;
    sum.sent_bytes += own.sent_bytes;
    sum.received_bytes += own.received_bytes;
  }
  return sum;
}

}  // namespace terrace
