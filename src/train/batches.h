// Hands a step's samples to the executor, contribution by contribution.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/data/sampler.h"
#include "src/model/gpt_executor.h"
#include "terrace/config.h"

namespace terrace {

// How a run's samples are taken: those of its steps, and those of an evaluation (in file order, one
// contribution of micro_batch samples a time, each target once).
SamplerOptions train_samples(const Config& config);
SamplerOptions validation_samples(const Config& config);

// Sets contributions k = rank, rank + ranks, ... below C of the step at the sampler's position, those without
// a sample too, and returns how many real targets they have. The divisor of the mean is the sum of that over
// all ranks: set_divisor is the caller's, and a step whose sum is 0 has nothing to train on and is skipped.
// Thread contract: ranks may call at once on one sampler, each with an executor of its own. Cost: a copy of
// the tokens.
std::uint64_t load_step(const DistributedSampler& sampler, GptExecutor& executor, std::uint32_t rank,
                        std::uint32_t ranks);

// For one rank: every contribution, and the divisor, unless the targets returned are 0.
std::uint64_t load_step(const DistributedSampler& sampler, GptExecutor& executor);

// Mean loss of a step from the sums of its C contributions, in order of k whichever rank computed them:
// folded in ascending k, divided once (contract C1). NaN without targets.
double mean_loss(std::span<const double> loss_sums, std::uint64_t targets);

// The same for one rank, of the step just run.
double mean_loss(const GptExecutor& executor, std::uint64_t contributions, std::uint64_t targets);

}  // namespace terrace
