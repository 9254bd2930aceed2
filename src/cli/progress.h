// What `terrace train` shows: one line a step, or a bar that stays in its place when standard output is a
// terminal.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "terrace/train.h"

namespace terrace {

// "step   20/400  loss 2.4312  1,843 tokens/s  grad norm 0.873  lr 3.00e-04  ETA 1m20s".
std::string step_line(const StepReport& report);
std::string eval_line(const EvalReport& report);
// "[=====>    ] step_line", never longer than `columns`; the bar goes first where there is no room for both.
std::string bar_line(const StepReport& report, std::size_t columns);

// Thread contract: one thread.
class Progress {
 public:
  Progress(std::FILE* out, bool terminal) : out_(out), terminal_(terminal) {}
  void step(const StepReport& report);
  void eval(const EvalReport& report);
  void finish();  // leaves the bar's line; more text may follow

 private:
  std::FILE* out_;
  bool terminal_;
  bool bar_shown_ = false;
};

}  // namespace terrace
