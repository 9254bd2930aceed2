#include "src/train/rank_report.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/base/units.h"

namespace terrace {
namespace {

std::string losses_text(const std::string& when, const std::vector<double>& losses) {
  std::string text = fmt::format("loss of each rank over its own targets, {}:", when);
  for (std::size_t rank = 0; rank < losses.size(); ++rank) {
    const std::string loss =
        std::isnan(losses[rank]) ? "without targets" : fmt::format("{:.4f}", losses[rank]);
    text += fmt::format("{} rank {} {}", rank > 0 ? "," : "", rank, loss);
  }
  return text + "\n";
}

}  // namespace

void RankReport::take(const DistributedSampler& sampler) {
  if (sampler.epoch() != step_epoch_) {
    step_epoch_ = sampler.epoch();
    std::ranges::fill(loss_sums_, 0);
    std::ranges::fill(targets_, 0);
  }
  const std::uint64_t contributions = sampler.options().contributions;
  for (std::uint64_t k = 0; k < contributions; ++k) {
    const SampleRange range = contribution_range(k, sampler.samples_of_step(), contributions);
    for (std::uint64_t i = range.begin; i < range.end && !whole_; ++i) {
      const std::uint64_t position = sampler.position() + i;
      if (position / sampler.windows() != epoch_) {
        std::ranges::fill(windows_, 0);
        epoch_ = position / sampler.windows();
      }
      ++windows_[k % ranks_];
      whole_ = std::accumulate(windows_.begin(), windows_.end(), std::uint64_t{0}) == sampler.windows();
    }
  }
}

void RankReport::add(const StepReport& step, std::span<const std::uint64_t> targets,
                     const CommunicatorStats::Traffic& before, const CommunicatorStats::Traffic& after) {
  for (std::size_t rank = 0; rank < step.rank_losses.size(); ++rank) {
    if (targets[rank] == 0) continue;
    loss_sums_[rank] += step.rank_losses[rank] * static_cast<double>(targets[rank]);
    targets_[rank] += targets[rank];
  }
  if (steps_++ == 0) first_ = step;
  last_ = step;
  sent_.calls += after.calls - before.calls;
  sent_.sent_bytes += after.sent_bytes - before.sent_bytes;
}

std::string RankReport::text(const DistributedSampler& sampler, const ModelShape& model) const {
  if (ranks_ == 1 || steps_ == 0) return "";
  std::string text =
      fmt::format("{} ranks; epoch {}{}: {} windows of {} tokens, taken by", ranks_, epoch_ + 1,
                  whole_ ? "" : " so far", sampler.windows(), sampler.options().context + 1);
  for (std::uint32_t rank = 0; rank < ranks_; ++rank)
    text += fmt::format("{} rank {} {}", rank > 0 ? "," : "", rank, windows_[rank]);
  text += "\n";
  std::vector<double> epoch;
  for (std::uint32_t rank = 0; rank < ranks_; ++rank)
    epoch.push_back(loss_sums_[rank] / static_cast<double>(targets_[rank]));
  text += losses_text(fmt::format("step {}", first_.step), first_.rank_losses) +
          losses_text(fmt::format("step {}", last_.step), last_.rank_losses) +
          losses_text(fmt::format("epoch {} up to there", step_epoch_ + 1), epoch);

  std::uint64_t parameters = 0, padded = 0;
  for (const UnitShape& unit : model.units) {
    parameters += unit.numel();
    padded += unit.padded_numel();
  }
  const double step_bytes = static_cast<double>(sent_.sent_bytes) / static_cast<double>(steps_);
  const double elements = step_bytes / static_cast<double>(dtype_bytes(model.grad_dtype));
  text += fmt::format("sent by rank 0: {} bytes in {} collectives; a step {:.0f} bytes in {:.1f}\n",
                      sent_.sent_bytes, sent_.calls, step_bytes,
                      static_cast<double>(sent_.calls) / static_cast<double>(steps_));
  text += fmt::format(
      "  {:.3f} elements of {} bytes for each of {} parameters, {:.3f} with their padding to {}; a ring "
      "all-reduce sends {:.3f}\n",
      elements / static_cast<double>(parameters), dtype_bytes(model.grad_dtype), parameters,
      elements / static_cast<double>(padded), padded, 2.0 * (ranks_ - 1) / ranks_);
  return text;
}

}  // namespace terrace
