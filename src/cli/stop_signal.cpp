#include "src/cli/stop_signal.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>

namespace terrace {
namespace {

volatile sig_atomic_t stop_requested = 0;
volatile sig_atomic_t answers_sigterm = 1;

extern "C" void on_stop_signal(int number) {
  const int saved = errno;
  stop_requested = 1;
  signal(SIGINT, SIG_DFL);
  signal(SIGTERM, SIG_DFL);
  constexpr char kText[] = "\nstopping after this step; once more to stop at once\n";
  if (number == SIGINT || answers_sigterm != 0) {
    [[maybe_unused]] const auto written = write(STDERR_FILENO, kText, sizeof kText - 1);
  }
  errno = saved;
}

}  // namespace

StopSignal::StopSignal(bool of_a_job) {
  stop_requested = 0;
  answers_sigterm = of_a_job ? 0 : 1;
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

StopSignal::~StopSignal() {
  signal(SIGINT, SIG_DFL);
  signal(SIGTERM, SIG_DFL);
}

bool StopSignal::requested() const {
  return stop_requested != 0;
}

}  // namespace terrace
