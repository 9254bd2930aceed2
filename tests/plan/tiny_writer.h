// What the steps of tiny_step.cpp are written with: slots, moves, and the computation of one unit.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/plan/program_builder.h"
#include "tests/plan/tiny_step.h"

namespace terrace {

constexpr std::uint64_t kChunkNumel = kBlockNumel;
constexpr std::uint64_t kStateBytes = 12 * kChunkNumel + 512;

class TinyWriter {
 protected:
  explicit TinyWriter(const TinyOptions& options);

  std::uint32_t units() const { return options_.units; }
  const UnitShape& shape(std::uint32_t unit) const { return input_.model.units[unit]; }
  std::uint64_t grad_bytes() const { return dtype_bytes(options_.grad_dtype); }
  std::uint64_t sum_bytes() const { return (options_.contributions == 1 ? grad_bytes() : 4) * kChunkNumel; }
  Tier tier_of(SlotId slot) const { return builder_.program.slots[slot].tier; }
  bool updates_forward() const { return options_.updates == UpdateTime::next_forward; }
  bool commits() const { return options_.kind == ProgramKind::train_commit; }

  SlotId slot(Tier tier, Item item, std::uint32_t unit, std::uint32_t chunk, std::uint64_t bytes,
              bool resident = false);
  // [chunk]: a new slot for each that is carried, if any.
  std::vector<SlotId> carried(bool any, Carry carry);
  Op make(OpKind kind, Lane lane, std::uint32_t unit, std::uint32_t chunk, std::vector<Access> accesses);
  void move(Access from, Access to, Item item, bool predicated = false);
  // The same data in a new slot of host memory, or where it is when that is there.
  SlotId to_host(SlotId home, Item item, bool predicated = false);
  void from_host(SlotId staged, SlotId home, Item item, bool predicated = false);
  // The unit on the device, from its chunks, in a new piece.
  SlotId gather(std::uint32_t unit);
  Op compute(OpKind kind, std::uint32_t unit, SlotId input);
  SlotId add_output(Op& op, Item item, std::uint32_t unit, std::uint64_t bytes, Role role);
  // Leaves the unit's output in outputs_ and what it saves in saved_.
  void forward(std::uint32_t unit);
  // Folds its gradients too; with recompute, rebuilds what it saved.
  void backward(std::uint32_t unit);
  void fold(std::uint32_t c, SlotId grads);

  const TinyOptions& options_;
  CheckInput input_;
  ProgramBuilder builder_;
  std::vector<SlotId> param_home_, grad_home_, state_home_, store_;  // by chunk
  std::vector<SlotId> carried_in_, carried_out_;                     // by chunk; kNone where not carried
  std::vector<SlotId> outputs_, saved_;                              // by unit
  SlotId output_grad_ = kNone;
  SlotId shared_grad_ = kNone;
  std::uint32_t micro_batch_ = kNone;
};

}  // namespace terrace
