// From the configuration to what the planner wants.
#pragma once

#include <cstdint>
#include <string>

#include "src/engine/host_overhead.h"
#include "src/plan/plan.h"
#include "terrace/config.h"

namespace terrace {

// The mesh and strategy of `ranks`. Throws invalid_argument, naming the keys, for replicas that do not divide
// the ranks or that the stage has no use for.
RankShape rank_shape(const Config& config);

// The plan's request. A tier of nvme whose path has no size gets `free_nvme_bytes`. `chunk_numel` is the
// store's where there is one already. `overhead` is what the host holds beside its arena.
PlanRequest plan_request(const Config& config, const ModelShape& model, std::uint64_t chunk_numel,
                         std::uint64_t free_nvme_bytes, const HostOverhead& overhead);

// Where the plan does not fit: the ledger and the smallest budgets that would do.
std::string refusal(const Plan& plan);

// What is free for the paths of tiers.nvme without a size; those on one file system share it. Throws
// not_found for a path that is no folder.
std::uint64_t free_nvme_bytes(const Config& config);

}  // namespace terrace
