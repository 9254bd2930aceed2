// Where each class of data lives, chunk by chunk, and the homes that follow from it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "src/plan/chunk_table.h"
#include "src/plan/model_shape.h"
#include "src/plan/program.h"

namespace terrace {

// Shares of a class of data by tier; they add up to 1.
using TierShares = std::array<double, kTiers>;

struct Placement {
  std::vector<Tier> parameters;       // by chunk: home of the 16-bit parameters
  std::vector<Tier> gradients;        // by chunk: home of the sum of contributions
  std::vector<Tier> optimizer_state;  // by chunk
  std::vector<Tier> activations;      // by unit: its output, kept for the backward of the next unit
  std::vector<bool> recompute;        // by unit: rebuild what forward saved
};

// Gives each item a tier so that every prefix of the list holds the shares as nearly as whole items allow.
std::vector<Tier> spread(const TierShares& shares, const std::vector<std::uint64_t>& item_bytes);

// Slots that hold their data for the whole run: the first slots of every program, with the same ids.
struct Residents {
  std::vector<Slot> slots;
  std::vector<SlotId> piece_home;             // by unit: the whole piece on the device, else kNone
  std::vector<SlotId> param_home;             // by chunk (kNone where the unit has a piece_home)
  std::vector<SlotId> grad_home;              // by chunk
  std::vector<SlotId> state_home;             // by chunk: in memory; kNone when it lives in the store
  std::vector<SlotId> store_extent;           // by chunk: its extent of the store (nvme), else kNone
  std::vector<SlotId> activation_home;        // by unit: host or nvme, else kNone
  std::vector<std::uint32_t> scratch_extent;  // by slot: index of its scratch extent, else kNone
  std::vector<std::uint64_t> scratch_bytes;   // by scratch extent
  std::array<std::uint64_t, kTiers> bytes{};  // nvme: one copy of the store's extents, and scratch
};

// Bytes of an element of a chunk's summed gradient.
std::uint64_t sum_element_bytes(const ModelShape& model, std::uint32_t contributions);

// Lays the homes out from offset 0 of each arena.
Residents lay_out_residents(const ModelShape& model, const std::vector<Chunk>& chunks,
                            const Placement& placement, std::uint32_t contributions, bool has_store);

}  // namespace terrace
