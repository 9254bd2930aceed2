// Where each class of data lives, chunk by chunk, and the homes that follow from it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "src/plan/chunk_table.h"
#include "src/plan/model_shape.h"
#include "src/plan/program.h"
#include "src/plan/rank_table.h"
#include "src/plan/reduction.h"

namespace terrace {

// Shares of a class of data by tier; they add up to 1.
using TierShares = std::array<double, kTiers>;

struct Placement {
  std::vector<Tier> parameters;       // by chunk: home of the 16-bit parameters
  std::vector<Tier> gradients;        // by chunk: home of the sum
  std::vector<Tier> optimizer_state;  // by chunk
  std::vector<Tier> activations;      // by unit: its output, kept for the backward of the next unit
  std::vector<bool> recompute;        // by unit: rebuild what forward saved
};

// Gives each item a tier so that every prefix of the list holds the shares as nearly as whole items allow.
std::vector<Tier> spread(const TierShares& shares, const std::vector<std::uint64_t>& item_bytes);

// Slots of one rank that hold their data for the whole run: the first slots of every program, with the same
// ids. What the rank does not keep is kNone.
struct Residents {
  std::vector<Slot> slots;
  std::vector<SlotId> piece_home;        // by unit: the whole piece on the device, else kNone
  std::vector<SlotId> param_home;        // by chunk (kNone where the unit has a piece_home)
  std::vector<SlotId> grad_home;         // by chunk: the summed gradient
  std::vector<SlotId> accumulator_home;  // by chunk: fp32, of an own chunk whose grad_home is grad dtype
  std::vector<SlotId> local_sum_home;    // by unit, on the device: fp32, under Reduction::last; else kNone
  std::vector<SlotId> state_home;        // by chunk: in memory; kNone when it lives on disk
  std::vector<SlotId> store_extent;      // by chunk: its extent of the store (nvme), else kNone. Of a chunk
                                         // of another rank it is only read, when a run starts
  std::vector<SlotId> state_copy;        // by chunk: scratch extent of a replica's state that lives on nvme
  std::vector<SlotId> activation_home;   // by unit: host or nvme, else kNone
  std::vector<std::uint32_t> scratch_extent;  // by slot: index of its scratch extent, else kNone
  std::vector<std::uint64_t> scratch_bytes;   // by scratch extent
  std::array<std::uint64_t, kTiers> bytes{};  // nvme: of the virtual space
  std::uint64_t own_store_bytes = 0;          // extents of the chunks that this rank writes, one copy
  std::uint64_t scratch_total_bytes = 0;
};

// Lays a rank's homes out from offset 0 of each arena.
Residents lay_out_residents(const ModelShape& model, const std::vector<Chunk>& chunks,
                            const Placement& placement, const RankTable& ranks, std::uint32_t rank,
                            std::uint32_t contributions, bool has_store);

}  // namespace terrace
