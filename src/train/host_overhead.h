// What training holds on the host beside its arenas.
#pragma once

#include <cstdint>

#include "src/engine/host_overhead.h"
#include "terrace/config.h"

namespace terrace {

// The same figures for `terrace plan` and for the run: formulas, fitted from above to measured runs, of the
// model, the chunks, the contributions and the number of threads. They hold for any budgets, so that the
// least budgets a refusal names are accepted. A run measures what its libraries really took and raises the
// first line where that is more. Reads how many cores the process may use and whether all memory may come in
// huge pages; allocates nothing that stays.
HostOverhead host_overhead(const Config& config, const ModelShape& model, std::uint64_t chunk_numel);

}  // namespace terrace
