#include <execinfo.h>
#include <signal.h>

#include "src/cli/commands.h"

int main(int argc, char** argv) {
  // glibc loads its unwinder when it is first needed, and aborts where memory has run out by then: load it
  // now.
  void* frame = nullptr;
  backtrace(&frame, 1);
  signal(SIGXFSZ, SIG_IGN);  // a file size limit is an error in words (EFBIG), not a silent end
  return terrace::run_command_line(argc, argv);
}
