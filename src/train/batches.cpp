#include "src/train/batches.h"

#include <vector>

namespace terrace {

std::uint64_t load_step(const DistributedSampler& sampler, GptExecutor& executor) {
  std::uint64_t targets_of_step = 0;
  for (std::uint64_t k = 0; k < sampler.options().contributions; ++k) {
    const std::size_t count = sampler.contribution_samples(k) * sampler.options().context;
    std::vector<std::uint32_t> tokens(count), targets(count);
    sampler.fill(k, tokens, targets);
    const std::vector<std::int32_t> signed_targets(targets.begin(), targets.end());
    executor.set_contribution(static_cast<std::uint32_t>(k), tokens, signed_targets);
    targets_of_step += count;
  }
  executor.set_divisor(targets_of_step);
  return targets_of_step;
}

double mean_loss(const GptExecutor& executor, std::uint64_t contributions, std::uint64_t targets) {
  double sum = 0;
  for (std::uint64_t k = 0; k < contributions; ++k) sum += executor.loss_sum(static_cast<std::uint32_t>(k));
  return sum / static_cast<double>(targets);
}

}  // namespace terrace
