#include "src/optimizer/schedule.h"

#include <cmath>

#include "src/base/fail.h"

namespace terrace {

ScheduleKind parse_schedule_kind(std::string_view name) {
  if (name == "constant") return ScheduleKind::constant;
  if (name == "linear") return ScheduleKind::linear;
  if (name == "cosine") return ScheduleKind::cosine;
  fail(ErrorCode::invalid_argument, "schedule is '{}'; wanted constant, linear or cosine", name);
}

LrScaling parse_lr_scaling(std::string_view name) {
  if (name == "linear") return LrScaling::linear;
  if (name == "sqrt") return LrScaling::sqrt;
  fail(ErrorCode::invalid_argument, "lr_scaling is '{}'; wanted linear or sqrt", name);
}

double scaled_lr(double lr, std::uint64_t batch, std::uint64_t reference, LrScaling scaling) {
  if (reference == 0) return lr;
  const double ratio = static_cast<double>(batch) / static_cast<double>(reference);
  return lr * (scaling == LrScaling::sqrt ? std::sqrt(ratio) : ratio);
}

// By the series of the cosine or the sine, whichever has an argument of at most pi / 4 in size.
double portable_cos_pi(double x) {
  constexpr double kPi = 3.14159265358979323846;
  if (x > 0.5) return -portable_cos_pi(1.0 - x);
  const bool cosine = x <= 0.25;
  const double y = kPi * (cosine ? x : 0.5 - x);
  const double square = y * y;
  double sum = 1.0;
  for (int n = cosine ? 17 : 18; n >= 1; n -= 2) sum = 1.0 - sum * (square / (n * (n + 1.0)));
  return cosine ? sum : y * sum;
}

double LearningRateSchedule::at(std::uint64_t step) const {
  if (!(lr >= 0) || !std::isfinite(lr)) {
    fail(ErrorCode::invalid_argument, "lr is {}; wanted a finite number >= 0", lr);
  }
  if (!(min_ratio >= 0 && min_ratio <= 1)) {
    fail(ErrorCode::invalid_argument, "min_lr_ratio is {}; wanted 0 to 1", min_ratio);
  }
  if (step < warmup_steps) return lr * (static_cast<double>(step + 1) / static_cast<double>(warmup_steps));
  if (kind == ScheduleKind::constant) return lr;
  // The decay runs from the last step of the warm-up (the first step without one), at lr, to total_steps - 1.
  const std::uint64_t first = warmup_steps == 0 ? 0 : warmup_steps - 1;
  if (step + 1 >= total_steps) return lr * min_ratio;
  const double progress = static_cast<double>(step - first) / static_cast<double>(total_steps - 1 - first);
  const double share =
      kind == ScheduleKind::linear ? 1.0 - progress : 0.5 * (1.0 + portable_cos_pi(progress));
  return lr * (min_ratio + (1.0 - min_ratio) * share);
}

}  // namespace terrace
