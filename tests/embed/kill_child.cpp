// kill_child FOLDER CLIP_NORM EVERY_STEPS KILL_AT: a program that embeds the optimizer, begun or resumed in
// FOLDER, until step 8; it kills itself before its KILL_AT-th call (0: never). Prints the state's hash at the
// end.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "src/base/log.h"
#include "tests/embed/host_program.h"

using namespace terrace;
using namespace terrace::embed_test;

int main(int argc, char** argv) try {
  if (argc != 5) return 2;
  ::alarm(120);
  logger()->set_level(spdlog::level::err);
  Config config = disk_config(argv[1], 2, std::stod(argv[2]), 0.6);
  config.commit.every_steps = std::stol(argv[3]);
  const long kill_at = std::stol(argv[4]);
  long calls = 0;
  const auto before_call = [&] {
    if (++calls == kill_at) ::kill(::getpid(), SIGKILL);
  };
  HostProgram program(odd_sizes());
  before_call();
  OptimizerBackend optimizer(config, program.registration(), {.bounds = kSmallUnits});
  before_call();
  if (optimizer.steps() > 0 && optimizer.program_state() != "after step " + std::to_string(optimizer.steps()))
    throw std::runtime_error("program_state is '" + optimizer.program_state() + "' after step " +
                             std::to_string(optimizer.steps()));
  while (optimizer.steps() < 8) {
    program.step(optimizer, 2, {.announce = optimizer.steps() % 2 == 0, .before_call = before_call});
    before_call();
    if (optimizer.steps() % 3 == 0) optimizer.save();
  }
  before_call();
  optimizer.save();
  before_call();
  std::printf("%s %ld\n", optimizer.state_hash().c_str(), calls);
  return 0;
} catch (const Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return error.code() == ErrorCode::busy ? 75 : 1;  // what the test waits for
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
