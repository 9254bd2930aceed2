// The plan of a run: model + budgets -> placement -> pools -> step programs. Pure: no device, clock, file or
// global.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/plan/compile.h"
#include "src/plan/ledger.h"

namespace terrace {

enum class Recompute : std::uint8_t { automatic, always, never };

struct PlanRequest {
  ModelShape model;
  std::uint32_t contributions = 1;
  UpdateTime updates = UpdateTime::next_forward;
  std::uint64_t chunk_numel = 1u << 20;
  RankShape ranks;
  std::uint32_t cut_ranks = 0;  // the number of ranks that chunks are cut for: a store's; 0 = ranks.ranks
  // Where parameters are sharded, units all of whose tensors have fewer elements stay whole on every rank.
  std::uint64_t persist_below_numel = 0;
  // Shares by tier; nothing = the planner's choice: the fastest tier gets what saves most traffic a byte.
  std::optional<TierShares> parameters;
  std::optional<TierShares> gradients;
  std::optional<TierShares> optimizer_state;
  std::optional<TierShares> activations;
  Recompute recompute = Recompute::automatic;
  // device: of each rank; host and nvme: of the node, for all ranks together. nvme: also of a store without
  // an nvme tier.
  std::array<std::uint64_t, kTiers> budget_bytes{};
  bool nvme_tier = false;         // classes of data may lie on nvme
  bool has_store = false;         // optimizer state has extents on nvme
  bool two_extents = true;        // of the store
  std::vector<LedgerLine> fixed;  // what else the run holds: libraries, token buffers;
                                  // of the host for all ranks together
  // Room to fetch ahead: 0: the least pools, 1: two of each kind, 2: deep queues, and state slots from what
  // the host budget leaves. Each pool gets the most up to this that fits.
  int slack = 2;
  bool ahead = true;  // false: nothing is fetched before it is needed
};

// Of one rank.
struct Plan {
  bool fits = false;
  RankTable ranks;
  std::uint32_t rank = 0;
  Ledger ledger;  // of all ranks: the device of the one that holds most, the host and the disks of the node
  // Where it does not fit: the smallest budgets of each tier with which the same request would be
  // accepted.
  std::array<std::uint64_t, kTiers> least_bytes{};
  std::vector<Chunk> chunks;
  Placement placement;
  Residents residents;
  UpdateTime updates = UpdateTime::next_forward;
  PoolBytes pools{};
  std::vector<StepProgram> programs;  // by ProgramKind; train_commit and commit only where a store has two
                                      // extents; drain may be empty
  std::array<std::uint64_t, 2> arena_bytes{};  // device, host

  const StepProgram& program(ProgramKind kind) const;
  bool has(ProgramKind kind) const;
};

// A plan for each rank: they differ in rank, residents, programs and arena_bytes alone. Throws
// invalid_argument for requests that no budget could satisfy (nvme shares without an nvme tier or store, a
// mesh that is none); returns fits = false, with ledger and least_bytes, for those that a larger budget
// would.
std::vector<Plan> make_plans(const PlanRequest& request);

// Rank 0's.
Plan make_plan(const PlanRequest& request);

// Bytes that a program moves on each lane.
std::array<std::uint64_t, kLanes> lane_bytes(const StepProgram& program);

}  // namespace terrace
