#include "src/plan/data_flow.h"

#include <algorithm>
#include <cstdint>

namespace terrace {
namespace {

// Who wrote which bytes of a slot last; runs do not overlap.
struct Written {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  OpId by = 0;
};

void replace(std::vector<Written>& runs, const Written& written) {
  std::vector<Written> kept;
  for (const Written& run : runs) {
    if (run.begin < written.begin) kept.push_back({run.begin, std::min(run.end, written.begin), run.by});
    if (run.end > written.end) kept.push_back({std::max(run.begin, written.end), run.end, run.by});
  }
  kept.push_back(written);
  runs = std::move(kept);
}

}  // namespace

DataFlow data_flow(const StepProgram& program) {
  DataFlow flow(program.ops.size());
  std::vector<std::vector<Written>> slots(program.slots.size());
  for (OpId id = 0; id < program.ops.size(); ++id) {
    std::vector<OpId>& uses = flow[id];
    for (const Access& access : program.ops[id].accesses) {
      if (access.mode == AccessMode::write) continue;
      for (const Written& run : slots[access.slot]) {
        if (run.begin < access.offset_bytes + access.bytes && access.offset_bytes < run.end)
          uses.push_back(run.by);
      }
    }
    std::sort(uses.begin(), uses.end());
    uses.erase(std::unique(uses.begin(), uses.end()), uses.end());
    for (const Access& access : program.ops[id].accesses) {
      if (access.mode == AccessMode::read) continue;
      replace(slots[access.slot], {access.offset_bytes, access.offset_bytes + access.bytes, id});
    }
  }
  return flow;
}

DataFlow reversed(const DataFlow& flow) {
  DataFlow users(flow.size());
  for (OpId id = 0; id < flow.size(); ++id) {
    for (const OpId used : flow[id]) users[used].push_back(id);
  }
  return users;
}

}  // namespace terrace
