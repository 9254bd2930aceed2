// The learning rate as a function of the step.
#pragma once

#include <cstdint>
#include <string_view>

namespace terrace {

enum class ScheduleKind { constant, linear, cosine };

// Throws invalid_argument naming the three known ones.
ScheduleKind parse_schedule_kind(std::string_view name);

struct LearningRateSchedule {
  ScheduleKind kind = ScheduleKind::constant;
  double lr = 1e-3;                // the highest value
  std::uint64_t warmup_steps = 0;  // lr * (step + 1) / warmup_steps before the decay begins
  std::uint64_t total_steps =
      1;  // linear and cosine reach lr * min_ratio at step total_steps - 1 and stay there
  double min_ratio = 0.0;

  // The rate of `step`, counted from 0. Plain IEEE arithmetic: the same bits on every machine. Throws
  // invalid_argument when lr is not finite and >= 0, or min_ratio not within [0, 1].
  double at(std::uint64_t step) const;
};

enum class LrScaling { linear, sqrt };

// Throws invalid_argument naming both.
LrScaling parse_lr_scaling(std::string_view name);

// The rate for `batch` samples a step where `lr` was chosen for `reference` of them: lr * (batch / reference)
// (Goyal et al., "Accurate, large minibatch SGD", 2017), or lr * sqrt(batch / reference) (for Adam: Malladi
// et al., "On the SDEs and scaling rules for adaptive gradient algorithms", 2022). reference = 0: lr as it
// is. Plain IEEE arithmetic.
double scaled_lr(double lr, std::uint64_t batch, std::uint64_t reference, LrScaling scaling);

// cos(pi * x) for 0 <= x <= 1, within 1e-15, without a library's bits.
double portable_cos_pi(double x);

}  // namespace terrace
