// From the configuration to what each layer below wants.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cpu/adamw.h"
#include "src/model/model_spec.h"
#include "src/optimizer/schedule.h"
#include "src/plan/plan.h"
#include "src/train/host_overhead.h"
#include "terrace/config.h"

namespace terrace {

ModelSpec model_spec(const Config& config);
DType compute_dtype(const Config& config);
DType grad_dtype(const Config& config);

// The plan's request. A tier of nvme whose path has no size gets `free_nvme_bytes`. `chunk_numel` is the
// store's where there is one already. `overhead` is what the host holds beside its arena.
PlanRequest plan_request(const Config& config, const ModelShape& model, std::uint64_t chunk_numel,
                         std::uint64_t free_nvme_bytes, const HostOverhead& overhead);
// With host_overhead(config, model, chunk_numel).
PlanRequest plan_request(const Config& config, const ModelShape& model, std::uint64_t chunk_numel,
                         std::uint64_t free_nvme_bytes);

// Where the plan does not fit: the ledger and the smallest budgets that would do.
std::string refusal(const Plan& plan);

LearningRateSchedule schedule_of(const Config& config);
// Hyperparameters by parameter group at a learning rate: 0 with weight decay, 1 without.
std::vector<AdamWHyper> groups_at(const Config& config, double lr);

}  // namespace terrace
