#include "src/plan/footprint.h"

#include <string>

namespace terrace {
namespace {

constexpr auto kDevice = static_cast<std::size_t>(Tier::device);
constexpr auto kHost = static_cast<std::size_t>(Tier::host);
constexpr auto kNvme = static_cast<std::size_t>(Tier::nvme);

}  // namespace

std::uint64_t pool_bytes(const PoolBytes& pools, Tier tier) {
  std::uint64_t sum = 0;
  for (int p = 0; p < kPools; ++p) {
    if (tier_of(static_cast<Pool>(p)) == tier) sum += pools[p];
  }
  return sum;
}

Footprint::Footprint(const PlanRequest& request, const Plan& common, const std::vector<Residents>& residents)
    : request_(request), common_(common), residents_(residents) {}

std::array<std::uint64_t, kTiers> Footprint::bytes(const PoolBytes& pools) const {
  std::array<std::uint64_t, kTiers> bytes{};
  bytes[kDevice] = residents_[fullest_rank()].bytes[kDevice] + pool_bytes(pools, Tier::device);
  for (const Residents& rank : residents_) {
    bytes[kHost] += rank.bytes[kHost] + pool_bytes(pools, Tier::host);
    bytes[kNvme] += rank.own_store_bytes + rank.scratch_total_bytes;
  }
  bytes[kNvme] += second_extents();
  for (const LedgerLine& line : request_.fixed) bytes[static_cast<std::size_t>(line.tier)] += line.bytes;
  return bytes;
}

Ledger Footprint::ledger(const PoolBytes& pools) const {
  Ledger ledger;
  ledger.budget_bytes = request_.budget_bytes;
  for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
    const bool disk = tier == Tier::nvme;
    ledger.add(tier, "parameters",
               resident_bytes(tier, Item::piece) + resident_bytes(tier, Item::param_chunk));
    ledger.add(tier, "gradient sums", resident_bytes(tier, Item::grad_sum));
    ledger.add(tier, "gradient accumulators (fp32)", resident_bytes(tier, Item::accumulator));
    ledger.add(tier, "local gradient sums (fp32)", resident_bytes(tier, Item::local_sum));
    ledger.add(tier, disk ? "optimizer state, one extent a chunk" : "optimizer state",
               resident_bytes(tier, Item::state_chunk));
    if (disk) ledger.add(tier, "optimizer state, second extents (commits)", second_extents());
    ledger.add(tier, "activations between forward and backward", resident_bytes(tier, Item::activation));
    for (int p = 0; p < kPools; ++p) {
      if (tier_of(static_cast<Pool>(p)) == tier) {
        const std::uint64_t copies = tier == Tier::host ? residents_.size() : 1;
        ledger.add(tier, std::string(name_of(static_cast<Pool>(p))), copies * pools[p]);
      }
    }
  }
  for (const LedgerLine& line : request_.fixed) ledger.add(line.tier, line.name, line.bytes);
  return ledger;
}

// The rank whose device holds most.
std::uint32_t Footprint::fullest_rank() const {
  std::uint32_t fullest = 0;
  for (std::uint32_t rank = 1; rank < residents_.size(); ++rank) {
    if (residents_[rank].bytes[kDevice] > residents_[fullest].bytes[kDevice]) fullest = rank;
  }
  return fullest;
}

// The store keeps two extents a chunk; the residents count one.
std::uint64_t Footprint::second_extents() const {
  if (!request_.has_store || !request_.two_extents) return 0;
  std::uint64_t sum = 0;
  for (const Chunk& chunk : common_.chunks) sum += state_slot_bytes(chunk);
  return sum;
}

// An extent of the store that another rank writes.
bool Footprint::is_foreign_extent(std::uint32_t rank, SlotId id) const {
  const Slot& slot = residents_[rank].slots[id];
  return slot.tier == Tier::nvme && slot.item == Item::state_chunk &&
         residents_[rank].store_extent[slot.chunk] == id && common_.ranks.owner(slot.chunk) != rank;
}

std::uint64_t Footprint::resident_bytes(Tier tier, Item item) const {
  std::uint64_t bytes = 0;
  for (std::uint32_t rank = 0; rank < residents_.size(); ++rank) {
    if (tier == Tier::device && rank != fullest_rank()) continue;
    for (SlotId id = 0; id < residents_[rank].slots.size(); ++id) {
      const Slot& slot = residents_[rank].slots[id];
      if (slot.tier == tier && slot.item == item && !is_foreign_extent(rank, id))
        bytes += round_up(slot.bytes, 4096);
    }
  }
  return bytes;
}

}  // namespace terrace
