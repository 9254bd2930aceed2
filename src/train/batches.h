// Hands a step's samples to the executor, contribution by contribution.
#pragma once

#include <cstdint>

#include "src/data/sampler.h"
#include "src/model/gpt_executor.h"

namespace terrace {

// Contributions 0..C-1 of the step at the sampler's position, and the divisor of its mean: the number of real
// target tokens of the whole step, which is returned.
std::uint64_t load_step(const DistributedSampler& sampler, GptExecutor& executor);

// Mean loss of the step just run: sums folded in ascending contribution, divided once.
double mean_loss(const GptExecutor& executor, std::uint64_t contributions, std::uint64_t targets);

}  // namespace terrace
