#include "src/train/batches.h"

#include <limits>

#include "src/base/fail.h"
#include "src/train/setup.h"

namespace terrace {

SamplerOptions train_samples(const Config& config) {
  SamplerOptions options;
  options.context = config.model.context;
  options.samples_per_step = effective_batch(config);
  options.contributions = config.train.micro_batches;
  options.seed = config.train.seed;
  options.stride = config.data.stride;
  options.last_batch = parse_last_batch(config.data.last_batch);
  options.ignore_token = config.data.ignore_token;
  return options;
}

SamplerOptions validation_samples(const Config& config) {
  SamplerOptions options;
  options.context = config.model.context;
  options.samples_per_step = config.train.micro_batch;
  options.shuffle = false;
  options.ignore_token = config.data.ignore_token;
  return options;
}

std::uint64_t load_step(const DistributedSampler& sampler, GptExecutor& executor, std::uint32_t rank,
                        std::uint32_t ranks) {
  check(rank < ranks, "rank {} of {}", rank, ranks);
  std::uint64_t real = 0;
  std::vector<std::uint32_t> tokens;
  std::vector<std::int32_t> targets;
  for (std::uint64_t k = rank; k < sampler.options().contributions; k += ranks) {
    tokens.resize(sampler.contribution_samples(k) * sampler.options().context);
    targets.resize(tokens.size());
    real += sampler.fill(k, tokens, targets);
    executor.set_contribution(static_cast<std::uint32_t>(k), tokens, targets);
  }
  return real;
}

std::uint64_t load_step(const DistributedSampler& sampler, GptExecutor& executor) {
  const std::uint64_t targets = load_step(sampler, executor, 0, 1);
  if (targets > 0) executor.set_divisor(targets);
  return targets;
}

double mean_loss(std::span<const double> loss_sums, std::uint64_t targets) {
  if (targets == 0) return std::numeric_limits<double>::quiet_NaN();
  double sum = 0;
  for (const double loss_sum : loss_sums) sum += loss_sum;
  return sum / static_cast<double>(targets);
}

double mean_loss(const GptExecutor& executor, std::uint64_t contributions, std::uint64_t targets) {
  std::vector<double> sums;
  for (std::uint64_t k = 0; k < contributions; ++k)
    sums.push_back(executor.loss_sum(static_cast<std::uint32_t>(k)));
  return mean_loss(sums, targets);
}

}  // namespace terrace
