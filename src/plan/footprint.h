// What a plan holds on each tier: totals, and the lines of its ledger. Internal to the planner.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "src/plan/plan.h"

namespace terrace {

// Bytes of the pools that lie on the tier, of one rank.
std::uint64_t pool_bytes(const PoolBytes& pools, Tier tier);

// Of the device: of the rank whose homes take most of it; of the host and the disks: of all ranks together.
// What the request lists as fixed is part of it.
class Footprint {
 public:
  // All are kept by reference, and may change between two calls: `common` is what the ranks' plans have in
  // common (chunks, ranks), `residents` are theirs, [rank].
  Footprint(const PlanRequest& request, const Plan& common, const std::vector<Residents>& residents);

  // With pools of that size, the same on every rank. Cost: linear in ranks and chunks.
  std::array<std::uint64_t, kTiers> bytes(const PoolBytes& pools) const;
  // The same line by line: a tier's lines add up to bytes(). Cost: linear in residents of all ranks.
  Ledger ledger(const PoolBytes& pools) const;

 private:
  std::uint32_t fullest_rank() const;
  std::uint64_t second_extents() const;
  bool is_foreign_extent(std::uint32_t rank, SlotId id) const;
  std::uint64_t resident_bytes(Tier tier, Item item) const;

  const PlanRequest& request_;
  const Plan& common_;
  const std::vector<Residents>& residents_;
};

}  // namespace terrace
