// The commands of `terrace`. Each add_* function declares one on the parser and stores what it does in
// `action`.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <string>
#include <vector>

#include "terrace/config.h"

namespace terrace {

inline constexpr int kExitOk = 0;
inline constexpr int kExitError = 1;  // an error, or a plan that does not fit
inline constexpr int kExitUsage = 2;

using Action = std::function<int()>;  // returns the exit code; throws terrace::Error

void add_data_commands(CLI::App& app, Action& action);
void add_store_commands(CLI::App& app, Action& action);
void add_info_commands(CLI::App& app, Action& action);   // doctor, version, config-reference
void add_train_commands(CLI::App& app, Action& action);  // train, plan, sample

// CONFIG.toml [--set KEY=VALUE ...], as several commands take them.
struct ConfigArguments {
  std::string file;
  std::vector<std::string> overrides;
  std::vector<std::string>
      more_overrides;  // that stand after the file: "--set a.b=1 c.d=2" is understood too

  std::string ranks, per_process, stage, replicas,
      reduce;  // --ranks and the like: short for --set ranks.count=N

  void add_to(CLI::App& command);
  void add_ranks_to(CLI::App& command);
  Config load() const;
};

// Parses the arguments and runs the command; returns the exit code. Errors are one line on standard error.
int run_command_line(int argc, const char* const* argv);

}  // namespace terrace
