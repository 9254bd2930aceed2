#include "src/cli/commands.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <cstdio>
#include <exception>
#include <memory>

namespace terrace {
namespace {

int print_error(const std::string& message, int code) {
  std::fflush(stdout);
  std::fprintf(stderr, "error: %s\n", message.c_str());
  return code;
}

// The library logs to the logger of this name. On a terminal a line first clears what a progress bar left
// there.
void register_logger(bool verbose) {
  if (spdlog::get("terrace")) return;
  const auto log = spdlog::stderr_color_mt("terrace");
  log->set_pattern(isatty(STDERR_FILENO) != 0 ? "\r\x1b[K%^%l%$: %v" : "%l: %v");
  log->set_level(verbose ? spdlog::level::info : spdlog::level::warn);
}

}  // namespace

void ConfigArguments::add_to(CLI::App& command) {
  command.add_option("config", file, "Configuration (docs/configuration.md)")
      ->required()
      ->type_name("CONFIG.toml");
  // One value each time, so that the file may follow.
  command.add_option("--set", overrides, "Override a key, e.g. --set train.steps=20")
      ->type_name("KEY=VALUE ...")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command.add_option("more", more_overrides)->type_name("KEY=VALUE ...")->group("");
}

void ConfigArguments::add_ranks_to(CLI::App& command) {
  command.add_option("--ranks", ranks, "Ranks (ranks.count)")->type_name("N");
  command
      .add_option("--ranks-per-process", per_process,
                  "1: under mpirun -n N, each process is a rank (ranks.per_process)")
      ->type_name("N");
  command.add_option("--stage", stage,
                     "0 to 3, no_shard, shard_grad_op, full_shard, hybrid_shard (ranks.stage)");
  command.add_option("--replicas", replicas, "Copies of the model under hybrid_shard (ranks.replicas)")
      ->type_name("R");
  command.add_option("--reduce", reduce, "each, last, grouped (ranks.reduce)");
}

Config ConfigArguments::load() const {
  std::vector<std::string> all = overrides;
  if (!ranks.empty()) all.push_back("ranks.count=" + ranks);
  if (!per_process.empty()) all.push_back("ranks.per_process=" + per_process);
  if (!stage.empty()) all.push_back("ranks.stage=\"" + stage + "\"");
  if (!replicas.empty()) all.push_back("ranks.replicas=" + replicas);
  if (!reduce.empty()) all.push_back("ranks.reduce=\"" + reduce + "\"");
  all.insert(all.end(), more_overrides.begin(), more_overrides.end());
  return load_config(file, all);
}

int run_command_line(int argc, const char* const* argv) {
  CLI::App app("Terrace trains models larger than device memory.", "terrace");
  bool verbose = false;
  app.add_flag("-v,--verbose", verbose, "Log more to standard error");
  Action action;
#ifdef TERRACE_HAS_TRAIN
  add_train_commands(app, action);
#endif
  add_data_commands(app, action);
  add_store_commands(app, action);
  add_info_commands(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    return print_error(error.what(), kExitUsage);
  }
  if (!action) return print_error("no command given; terrace --help lists them", kExitUsage);
  register_logger(verbose);
  try {
    const int code = action();
    if (std::fflush(stdout) != 0) return print_error("standard output: cannot write", kExitError);
    return code;
  } catch (const std::exception& error) {
    return print_error(error.what(), kExitError);
  }
}

}  // namespace terrace
