#include <fmt/core.h>

#include <memory>

#include "src/cli/commands.h"
#include "terrace/doctor.h"

namespace terrace {

void add_info_commands(CLI::App& app, Action& action) {
  struct Arguments {
    std::vector<std::string> paths;
    std::string config;
  };
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* doctor = app.add_subcommand("doctor", "What this machine offers, tried out");
  doctor->add_option("paths", arguments->paths, "Folders to look at (default: the current one)")
      ->type_name("PATH ...");
  doctor->add_option("--config", arguments->config, "Look at the folders this configuration names")
      ->type_name("CONFIG.toml");
  doctor->callback([arguments, &action] {
    action = [arguments] {
      std::vector<std::string> paths = arguments->paths;
      if (!arguments->config.empty()) {
        const Config config = load_config(arguments->config);
        for (const auto& path : config.tiers.nvme) paths.push_back(path.path);
        if (!config.store.path.empty()) paths.push_back(config.store.path);
      }
      if (paths.empty()) paths.emplace_back(".");
      fmt::print("{}", doctor_report(paths));
      return kExitOk;
    };
  });

  app.add_subcommand("version", "The version of the program")->callback([&action] {
    action = [] {
      fmt::print("terrace {}\n", version());
      return kExitOk;
    };
  });

  // For scripts: writes docs/configuration.md. An empty group keeps it out of --help.
  app.add_subcommand("config-reference", "docs/configuration.md")->group("")->callback([&action] {
    action = [] {
      fmt::print("{}", config_reference());
      return kExitOk;
    };
  });
}

}  // namespace terrace
