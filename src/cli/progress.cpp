#include "src/cli/progress.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "src/cli/text.h"

namespace terrace {
namespace {

constexpr std::size_t kBarColumns = 24;

std::size_t terminal_columns(std::FILE* out) {
  winsize size{};
  return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

std::string step_line(const StepReport& report) {
  const std::string total = fmt::format("{}", report.total_steps);
  const double rate = std::isfinite(report.tokens_per_s) && report.tokens_per_s > 0 ? report.tokens_per_s : 0;
  std::string line =
      fmt::format("step {:>{}}/{}  loss {:.4f}  {} tokens/s  grad norm {:.3f}  lr {:.2e}", report.step,
                  total.size(), total, report.loss, grouped(static_cast<std::uint64_t>(std::min(rate, 1e15))),
                  report.grad_norm, report.lr);
  if (report.skipped) return line + "  skipped: none of its targets counts";
  if (report.dropped) line += "  dropped: the gradient is not finite";
  return line + "  ETA " + duration_text(report.eta_s);
}

std::string eval_line(const EvalReport& report) {
  return fmt::format("step {}  validation loss {:.4f}", report.step, report.loss);
}

std::string bar_line(const StepReport& report, std::size_t columns) {
  std::string line = step_line(report);
  if (line.size() + kBarColumns + 3 <= columns) {
    const std::uint64_t total = std::max<std::uint64_t>(report.total_steps, 1);
    const double share = std::min(1.0, static_cast<double>(report.step) / static_cast<double>(total));
    const auto full = static_cast<std::size_t>(share * static_cast<double>(kBarColumns));
    std::string bar(full, '=');
    if (full < kBarColumns) bar += '>';
    bar.resize(kBarColumns, ' ');
    line = "[" + bar + "] " + line;
  }
  if (line.size() > columns) line.resize(columns);
  return line;
}

void Progress::step(const StepReport& report) {
  if (!terminal_ || report.dropped || report.skipped) {  // a dropped step stays on the screen
    finish();
    fmt::print(out_, "{}\n", step_line(report));
  } else {
    fmt::print(out_, "\r\x1b[K{}", bar_line(report, terminal_columns(out_) - 1));
    bar_shown_ = true;
  }
  std::fflush(out_);
}

void Progress::eval(const EvalReport& report) {
  finish();
  fmt::print(out_, "{}\n", eval_line(report));
  std::fflush(out_);
}

void Progress::finish() {
  if (bar_shown_) fmt::print(out_, "\n");
  bar_shown_ = false;
}

}  // namespace terrace
