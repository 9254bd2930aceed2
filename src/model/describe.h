// The planner's view of a ModelSpec.
#pragma once

#include <cstdint>

#include "src/model/model_spec.h"
#include "src/plan/model_shape.h"

namespace terrace {

// Units, tensors and sizes for contributions of at most `max_samples` samples. Parameters and activations are
// in `param_dtype`, contributions in `grad_dtype`. Group 0 decays, group 1 does not. Throws as validate().
ModelShape describe(const ModelSpec& spec, std::uint32_t max_samples, DType param_dtype, DType grad_dtype);

}  // namespace terrace
