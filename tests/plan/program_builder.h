// Small step programs by hand.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "src/plan/program.h"

namespace terrace {

class ProgramBuilder {
 public:
  explicit ProgramBuilder(std::uint64_t tier_bytes = 1024) { program.tier_bytes.fill(tier_bytes); }

  SlotId slot(Tier tier, std::uint64_t offset_bytes, std::uint64_t bytes, bool resident = false,
              Item item = Item::workspace) {
    Slot made;
    made.tier = tier;
    made.item = item;
    made.resident = resident;
    made.offset_bytes = offset_bytes;
    made.bytes = bytes;
    program.slots.push_back(made);
    return static_cast<SlotId>(program.slots.size() - 1);
  }

  Access whole(SlotId slot, AccessMode mode, Role role = Role::none) const {
    return {slot, mode, role, 0, program.slots[slot].bytes};
  }
  Access read(SlotId slot) const { return whole(slot, AccessMode::read); }
  Access write(SlotId slot) const { return whole(slot, AccessMode::write); }
  Access update(SlotId slot) const { return whole(slot, AccessMode::update); }

  OpId op(OpKind kind, Lane lane, std::vector<OpId> waits = {}, std::vector<Access> accesses = {}) {
    Op made;
    made.kind = kind;
    made.lane = lane;
    made.waits = std::move(waits);
    made.accesses = std::move(accesses);
    return add(std::move(made));
  }
  OpId add(Op made) {
    program.ops.push_back(std::move(made));
    return static_cast<OpId>(program.ops.size() - 1);
  }

  StepProgram program;
};

}  // namespace terrace
