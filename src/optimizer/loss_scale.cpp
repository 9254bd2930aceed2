#include "src/optimizer/loss_scale.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "src/base/fail.h"

namespace terrace {
namespace {

bool is_scale(double value) {
  return value > 0 && value <= kLargestLossScale;
}

bool is_power_of_two(double value) {
  int exponent = 0;
  return std::frexp(value, &exponent) == 0.5;
}

void require(bool ok, const char* name, double value, const char* wanted) {
  if (!ok) fail(ErrorCode::invalid_argument, "loss scale: {} is {}; wanted {}", name, value, wanted);
}

}  // namespace

LossScale::LossScale(const LossScaleOptions& options)
    : options_(options),
      scale_(options.dynamic ? options.initial : options.fixed),
      overflows_left_(options.hysteresis) {
  if (!options.dynamic) {
    require(is_scale(options.fixed), "the fixed scale", options.fixed, "a number above 0, at most 2^64");
    return;
  }
  constexpr const char* kWanted = "a power of two, at most 2^64";
  require(is_scale(options.initial) && is_power_of_two(options.initial), "initial", options.initial, kWanted);
  require(is_scale(options.minimum) && is_power_of_two(options.minimum), "minimum", options.minimum, kWanted);
  require(options.minimum <= options.initial, "minimum", options.minimum, "at most the initial scale");
  require(options.window >= 1, "window", static_cast<double>(options.window), "at least 1 step");
  require(options.hysteresis >= 1, "hysteresis", static_cast<double>(options.hysteresis), "at least 1 step");
}

LossScaleChange LossScale::update(bool finite) {
  if (!options_.dynamic) return LossScaleChange::none;
  if (finite) {
    if (++finite_steps_ < options_.window) return LossScaleChange::none;
    finite_steps_ = 0;
    overflows_left_ = options_.hysteresis;
    if (scale_ >= kLargestLossScale) return LossScaleChange::none;
    scale_ *= 2;
    return LossScaleChange::raised;
  }
  if (overflows_left_ == 1 && scale_ <= options_.minimum) {
    fail(ErrorCode::invalid_argument,
         "the gradient is not finite, and the loss scale is at precision.loss_scale_minimum = {}: it cannot "
         "be "
         "lowered any further. Either the run diverges (try a lower optimizer.lr, a longer "
         "optimizer.warmup_steps, a lower optimizer.clip_norm), or a parameter or an activation is beyond "
         "65504, "
         "the largest fp16, which no loss scale cures (try precision.compute = \"bf16\" or \"fp32\")",
         options_.minimum);
  }
  finite_steps_ = 0;
  if (overflows_left_ > 1) {
    --overflows_left_;
    return LossScaleChange::none;
  }
  scale_ /= 2;
  return LossScaleChange::lowered;
}

std::string LossScale::save() const {
  return nlohmann::json{{"dynamic", options_.dynamic},
                        {"scale", scale_},
                        {"finite_steps", finite_steps_},
                        {"overflows_left", overflows_left_}}
      .dump();
}

void LossScale::restore(const std::string& json) {
  bool dynamic = false;
  double scale = 0;
  std::uint64_t finite_steps = 0, overflows_left = 0;
  try {
    const auto state = nlohmann::json::parse(json);
    state.at("dynamic").get_to(dynamic);
    state.at("scale").get_to(scale);
    for (const char* name : {"finite_steps", "overflows_left"}) {
      if (!state.at(name).is_number_unsigned())
        fail(ErrorCode::corrupt, "loss scale state: {} in {}", name, json);
    }
    state["finite_steps"].get_to(finite_steps);
    state["overflows_left"].get_to(overflows_left);
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::corrupt, "loss scale state {}: {}", json, error.what());
  }
  if (!is_scale(scale) || (dynamic && !is_power_of_two(scale)) || overflows_left == 0) {
    fail(ErrorCode::corrupt, "loss scale state {}: wanted a positive scale and overflows left", json);
  }
  if (!dynamic || !options_.dynamic) return;
  scale_ = std::max(scale, options_.minimum);
  finite_steps_ = std::min(finite_steps, options_.window - 1);
  overflows_left_ = std::min(overflows_left, options_.hysteresis);
}

}  // namespace terrace
