// What the loss is multiplied by before backward, so that small gradients do not vanish in fp16.
#pragma once

#include <cstdint>
#include <string>

namespace terrace {

inline constexpr double kLargestLossScale = 0x1p64;

struct LossScaleOptions {
  bool dynamic = false;
  double fixed = 1;  // the scale where it is not dynamic: above 0, at most kLargestLossScale
  // Of a dynamic scale. Initial and minimum are powers of two, minimum <= initial <= kLargestLossScale.
  double initial = 65536;
  std::uint64_t window = 1000;   // at least 1
  std::uint64_t hysteresis = 2;  // at least 1
  double minimum = 1;
};

enum class LossScaleChange : std::uint8_t { none, lowered, raised };

// A fixed scale never changes. A dynamic one follows DeepSpeed's DynamicLossScaler (factor 2, hysteresis not
// consecutive), after each step whose gradient was looked at:
// - Not finite: while `hysteresis` has more than one overflow left it loses one and the scale stays; else the
//   scale is halved, down to `minimum`. Finite steps give nothing back; only the next rule does.
// - Finite: the `window`-th in a row since the start, the last overflow or the last time that this happened
//   doubles the scale (kLargestLossScale stays), and all of `hysteresis` is there again.
// So a dynamic scale is a power of two, and what it does to a gradient in fp32 is exact. Thread contract: one
// thread. Cost: nothing.
class LossScale {
 public:
  // Throws invalid_argument naming the option, what was wanted and what was got.
  explicit LossScale(const LossScaleOptions& options);

  // Of the next step.
  double scale() const { return scale_; }
  bool dynamic() const { return options_.dynamic; }

  // Takes note of a step that ran with scale(); a step without targets is not one. Throws invalid_argument,
  // and changes nothing, when an overflow finds the scale at its minimum with nothing left of the hysteresis:
  // what is wrong is then not the scale.
  LossScaleChange update(bool finite);

  // For the run state, as JSON. A restored scale goes on as the saved one would have.
  std::string save() const;
  // Takes a dynamic state into a dynamic scale. Where one of the two is fixed the configuration's word stands
  // and nothing is taken; where other options changed, the state is brought within them (a scale below the
  // minimum is raised to it). Throws corrupt for text that save() did not write.
  void restore(const std::string& json);

 private:
  LossScaleOptions options_;
  double scale_;
  std::uint64_t finite_steps_ = 0;  // in a row; below window
  std::uint64_t overflows_left_;    // of the hysteresis; at least 1
};

}  // namespace terrace
