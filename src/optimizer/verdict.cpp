#include "src/optimizer/verdict.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/base/fail.h"

namespace terrace {

Verdict make_verdict(const ExactSum& block_sums, double clip_norm, double loss_scale) {
  if (!(clip_norm >= 0) || !std::isfinite(clip_norm)) {
    fail(ErrorCode::invalid_argument, "clip_norm is {}; wanted a finite number >= 0 (0 = no clipping)",
         clip_norm);
  }
  if (!(loss_scale > 0) || !std::isfinite(loss_scale)) {
    fail(ErrorCode::invalid_argument, "loss_scale is {}; wanted a finite number > 0", loss_scale);
  }
  const double stored = block_sums.to_double();
  if (!std::isfinite(stored)) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    return {
        .finite = false, .sum_of_squares = kInfinity, .norm = kInfinity, .clip_factor = 0, .grad_scale = 0};
  }
  Verdict verdict;
  verdict.norm = std::sqrt(stored) / loss_scale;
  verdict.sum_of_squares = stored / loss_scale / loss_scale;
  const double clip = clip_norm > 0 ? std::min(1.0, clip_norm / (verdict.norm + 1e-6)) : 1.0;
  verdict.clip_factor = static_cast<float>(clip);
  verdict.grad_scale = static_cast<float>(clip / loss_scale);
  return verdict;
}

}  // namespace terrace
