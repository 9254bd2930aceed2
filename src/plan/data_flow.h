// Which operation's result each operation of a program uses: what no better order could do without. Pure.
#pragma once

#include <vector>

#include "src/plan/program.h"

namespace terrace {

// By operation: the earlier ones that wrote bytes it reads, through the same slot (so a slot's next use for
// other data is no reason), ascending. What was in a slot before the program has no writer.
using DataFlow = std::vector<std::vector<OpId>>;

// Cost: O(accesses * writers of one slot at once).
DataFlow data_flow(const StepProgram& program);

// From an operation to what uses its results, ascending.
DataFlow reversed(const DataFlow& flow);

// Marks `id` and all that can be reached from it. `fn(OpId)` is called on each that was not marked yet.
template <typename Fn>
void mark_reached(const DataFlow& flow, OpId id, std::vector<bool>& marked, Fn&& fn) {
  std::vector<OpId> open{id};
  while (!open.empty()) {
    const OpId next = open.back();
    open.pop_back();
    if (marked[next]) continue;
    marked[next] = true;
    fn(next);
    open.insert(open.end(), flow[next].begin(), flow[next].end());
  }
}

}  // namespace terrace
