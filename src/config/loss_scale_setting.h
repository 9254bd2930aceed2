// What the precision keys say about the loss scale.
#pragma once

#include "terrace/config.h"

namespace terrace {

struct LossScaleSetting {
  bool dynamic = false;
  double fixed = 1;  // the scale where it is not dynamic
  // Whether a step's gradient may overflow without a fault of the model: it is then looked at as a whole
  // before anything is updated, with or without clipping.
  bool wants_verdict = false;
};

// precision.loss_scale with "auto" resolved. Pure.
LossScaleSetting loss_scale_setting(const Config& config);

}  // namespace terrace
