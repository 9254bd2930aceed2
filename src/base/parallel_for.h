// The one parallel loop of the project. Work is cut into fixed pieces by the caller; how many threads take
// them never changes a result.
#pragma once

#include <cstddef>
#include <functional>

namespace terrace {

// Sets how many threads parallel_for may use in this process (0 = one per core the process may run on).
// Call before the first parallel_for; not thread-safe against running loops.
void set_parallel_threads(int threads);
int parallel_threads();

// Calls body(i) for every i in [0, count), in any order, on up to parallel_threads() threads; returns when
// all have returned. The first exception is rethrown after the others have finished. Each worker sets its own
// floating-point mode (round to nearest, denormals kept). May be called from several threads at once; must
// not be nested. Cost: a few microseconds; make a piece worth that.
void parallel_for(std::size_t count, const std::function<void(std::size_t)>& body);

}  // namespace terrace
