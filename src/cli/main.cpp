#include "src/cli/commands.h"

int main(int argc, char** argv) {
  return terrace::run_command_line(argc, argv);
}
