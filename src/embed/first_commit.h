// What a new store begins with.
#pragma once

#include <string>

#include "src/engine/engine.h"

namespace terrace {

// Writes every chunk's initial state (no moments) to the store of an engine that has not started, and commits
// that as step 0 where the store commits at all. From then on no state comes from the program's memory,
// whatever steps are dropped. Cost: one pass of writes; no memory of its own.
void commit_initial_states(Engine& engine, bool commits, const std::string& run_state);

}  // namespace terrace
