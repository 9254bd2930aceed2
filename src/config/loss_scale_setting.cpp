#include "src/config/loss_scale_setting.h"

#include "src/base/fail.h"
#include "src/config/keys.h"

namespace terrace {

LossScaleSetting loss_scale_setting(const Config& config) {
  const Config::Precision& precision = config.precision;
  const bool half = precision.compute == "fp16" || precision.grad == "fp16";
  const ConfigKey* key = find_key("precision.loss_scale");
  check(key != nullptr, "no key precision.loss_scale");
  const std::string_view word = word_of(*key, precision.loss_scale);
  if (word == "dynamic" || (word == "auto" && half)) return {.dynamic = true, .wants_verdict = true};
  const double fixed = word == "auto" ? 1.0 : precision.loss_scale;
  return {.fixed = fixed, .wants_verdict = half || fixed != 1};
}

}  // namespace terrace
