// From the configuration to what each layer below wants.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cpu/adamw.h"
#include "src/engine/plan_request.h"
#include "src/model/model_spec.h"
#include "src/optimizer/loss_scale.h"
#include "src/optimizer/schedule.h"
#include "src/train/host_overhead.h"
#include "src/train/parameter_groups.h"
#include "terrace/config.h"

namespace terrace {

ModelSpec model_spec(const Config& config);
DType compute_dtype(const Config& config);
DType grad_dtype(const Config& config);

// describe() of the configured model, its tensors in the groups that optimizer.groups says.
ModelShape model_shape(const Config& config);

// As the engine asks it, with host_overhead(config, model, chunk_numel).
PlanRequest plan_request(const Config& config, const ModelShape& model, std::uint64_t chunk_numel,
                         std::uint64_t free_nvme_bytes);

// precision.loss_scale and its options; the state is that of a new run.
LossScale loss_scale_of(const Config& config);

// Samples of a full step, over all ranks: micro_batch * micro_batches.
std::uint64_t effective_batch(const Config& config);
// Its peak is optimizer.lr, scaled to effective_batch() where train.lr_reference_batch says what it was
// chosen for.
LearningRateSchedule schedule_of(const Config& config);

}  // namespace terrace
