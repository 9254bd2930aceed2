#include <signal.h>

#include "src/cli/commands.h"

int main(int argc, char** argv) {
  signal(SIGXFSZ, SIG_IGN);  // a file size limit is an error in words (EFBIG), not a silent end
  return terrace::run_command_line(argc, argv);
}
