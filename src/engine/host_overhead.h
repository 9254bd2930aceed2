// What a run holds on the host beside its arenas, line by line.
#pragma once

#include <cstdint>
#include <vector>

#include "src/plan/plan.h"
#include "terrace/config.h"

namespace terrace {

struct HostOverhead {
  std::uint64_t library_bytes = 0;  // program, libraries, prepared matrix products, threads' stacks and heaps
  std::uint64_t scratch_bytes = 0;  // of the compute threads
  std::uint64_t token_bytes = 0;    // tokens and targets of a step
  std::uint64_t program_bytes = 0;  // compiled step programs, and what running one takes
  std::uint64_t table_bytes = 0;    // of chunks, store and I/O queue
  std::uint64_t rounding_bytes = 0;  // each arena ends with a whole huge page
  std::uint64_t copy_bytes = 0;      // of parameters, beside the arenas: ranks.own_seeds, --compare-ranks

  std::uint64_t total() const;
  std::vector<LedgerLine> lines() const;  // of the host tier, none of them page-locked
};

// The lines that follow from the model's shape, the chunks and the contributions alone: programs, tables,
// rounding. A formula, fitted from above to measured runs; it holds for any budgets, so that the least
// budgets a refusal names are accepted. Pure.
HostOverhead engine_overhead(const Config& config, const ModelShape& model, std::uint64_t chunk_numel);

// Ranks that are threads of this process.
std::uint64_t local_ranks(const Config& config);

// compute.threads, or one a core that the process may use; where ranks are processes, its share of them.
std::uint64_t compute_threads(const Config& config);

// What a plan's compiled programs take when one of them runs: at most program_bytes above.
std::uint64_t program_bytes(const Plan& plan);

}  // namespace terrace
