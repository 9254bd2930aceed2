// What the whole gradient says about a step: whether it is finite, its norm, and so the clip factor.
#pragma once

#include "src/optimizer/exact_sum.h"

namespace terrace {

struct Verdict {
  bool finite = true;           // false: the step is dropped
  double sum_of_squares = 0.0;  // of the unscaled gradient
  double norm = 0.0;
  float clip_factor = 1.0f;  // min(1, clip_norm / (norm + 1e-6)); 1 when clipping is off
  float grad_scale =
      1.0f;  // what AdamW multiplies the stored gradient by: clip factor / loss scale, rounded once
};

// From the sum of the block sums over every parameter. `clip_norm` 0 turns clipping off; `loss_scale` is what
// the stored gradient is larger by. When a value was not finite the norm is infinity and the factors are 0.
// Throws invalid_argument for a negative or non-finite clip_norm or a loss_scale that is not positive. Pure.
Verdict make_verdict(const ExactSum& block_sums, double clip_norm, double loss_scale = 1.0);

}  // namespace terrace
