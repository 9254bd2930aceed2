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

// cos(pi * x) for 0 <= x <= 1, within 1e-15, without a library's bits.
double portable_cos_pi(double x);

}  // namespace terrace
