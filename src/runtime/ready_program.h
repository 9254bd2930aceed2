// A program made ready to run: its slots in the arenas, its operations by lane.
#pragma once

#include <array>
#include <vector>

#include "src/memory/slot_table.h"
#include "src/plan/program.h"

namespace terrace {

struct ReadyProgram {
  ReadyProgram(const StepProgram& given, const Arenas& arenas, bool poison)
      : program(given), slots(given, arenas, poison) {
    for (OpId id = 0; id < given.ops.size(); ++id)
      lanes[static_cast<std::size_t>(given.ops[id].lane)].push_back(id);
  }

  const StepProgram& program;
  SlotTable slots;
  std::array<std::vector<OpId>, kLanes> lanes;
};

}  // namespace terrace
