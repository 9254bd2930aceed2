#include <fmt/core.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "src/cli/commands.h"
#include "src/cli/progress.h"
#include "src/cli/stop_signal.h"
#include "terrace/demo.h"
#include "terrace/plan.h"
#include "terrace/train.h"

namespace terrace {
namespace {

int run_train(const ConfigArguments& arguments, TrainOptions options) {
  const Config config = arguments.load();
  spdlog::get("terrace")->set_level(spdlog::level::info);  // a run says on what it runs
  Progress progress(stdout, isatty(STDOUT_FILENO) != 0);
  const StopSignal stop(config.ranks.per_process > 0);
  options.on_step = [&progress](const StepReport& report) { progress.step(report); };
  options.on_eval = [&progress](const EvalReport& report) { progress.eval(report); };
  options.should_stop = [&stop] { return stop.requested(); };
  options.on_stuck = [&progress](const std::string& what) {
    progress.finish();
    fmt::print(stderr, "error: {}, which it does not: the process ends without it\n", what);
    std::fflush(nullptr);
    std::_Exit(kExitError);
  };
  TrainResult result;
  try {
    result = train(config, options);
  } catch (...) {
    progress.finish();
    throw;
  }
  progress.finish();
  if (!result.first_process) return kExitOk;
  if (result.interrupted) {
    fmt::print("stopped after step {} of {}{}\n", result.steps, config.train.steps,
               config.store.path.empty() || config.commit.every_steps == 0
                   ? ": nothing was kept (no store that commits)"
                   : ", committed: --resume goes on from there");
  } else {
    fmt::print("trained {} steps", result.steps);
    if (!std::isnan(result.last_loss)) fmt::print(": last loss {:.4f}", result.last_loss);
    if (!std::isnan(result.eval_loss)) fmt::print(", validation loss {:.4f}", result.eval_loss);
    fmt::print("\n");
  }
  fmt::print("state {}\n", result.state_hash);
  if (!result.report.empty()) fmt::print("{}{}", result.report, result.report.ends_with('\n') ? "" : "\n");
  return kExitOk;
}

int run_plan(const ConfigArguments& arguments, bool measure) {
  const Config config = arguments.load();
  std::function<MachineRates(bool)> rates;
  if (measure) rates = [&config](bool disk) { return measure_machine(config, disk); };
  const PlanReport report = plan_report(config, rates);
  fmt::print("{}{}", report.text, report.text.ends_with('\n') ? "" : "\n");
  return report.fits ? kExitOk : kExitError;
}

}  // namespace

void add_train_commands(CLI::App& app, Action& action) {
  struct Train {
    ConfigArguments config;
    TrainOptions options;
  };
  const auto train = std::make_shared<Train>();
  CLI::App* train_command = app.add_subcommand("train", "Train a model");
  train->config.add_to(*train_command);
  train->config.add_ranks_to(*train_command);
  train_command->add_flag("--resume", train->options.resume, "Go on from the store's last commit");
  train_command->add_option("--metrics", train->options.metrics_path, "Write every step as a line of JSON")
      ->type_name("FILE.jsonl");
  train_command
      ->add_option("--trace", train->options.trace_path,
                   "Write when each operation of the last steps ran, for chrome://tracing or Perfetto")
      ->type_name("FILE.json");
  train_command->add_flag("--compare-ranks", train->options.compare_ranks,
                          "At the end, compare the parameters that all ranks compute with (takes a copy of "
                          "all parameters for each rank; up to 2^26 parameters)");
  train_command->callback(
      [train, &action] { action = [train] { return run_train(train->config, train->options); }; });

  struct Plan {
    ConfigArguments config;
    bool no_measure = false;
  };
  const auto plan = std::make_shared<Plan>();
  CLI::App* plan_command =
      app.add_subcommand("plan", "What a run would hold, move and take, without training");
  plan->config.add_to(*plan_command);
  plan->config.add_ranks_to(*plan_command);
  plan_command->add_flag(
      "--no-measure", plan->no_measure,
      "Predict no times (else the machine is measured for about a second, and each nvme folder "
      "with 512 MiB, removed again)");
  plan_command->callback(
      [plan, &action] { action = [plan] { return run_plan(plan->config, !plan->no_measure); }; });

  const auto demo = std::make_shared<ConfigArguments>();
  CLI::App* demo_command = app.add_subcommand("demo", "Demonstrations, in figures");
  demo_command->require_subcommand(1);
  CLI::App* uneven = demo_command->add_subcommand(
      "uneven-mean", "What a plain mean of the ranks' means does to an epoch's last batch");
  demo->add_to(*uneven);
  demo->add_ranks_to(*uneven);
  uneven->callback([demo, &action] {
    action = [demo] {
      fmt::print("{}", uneven_mean_demo(demo->load()));
      return kExitOk;
    };
  });

  struct Sample {
    ConfigArguments config;
    SampleOptions options;
  };
  const auto sample = std::make_shared<Sample>();
  CLI::App* sample_command = app.add_subcommand("sample", "Generate text with the store's last commit");
  sample->config.add_to(*sample_command);
  sample_command->add_option("--prompt", sample->options.prompt, "Text to go on from")->type_name("TEXT");
  sample_command->add_option("--tokens", sample->options.tokens, "Tokens to generate")->capture_default_str();
  sample_command
      ->add_option("--temperature", sample->options.temperature,
                   "Below 1: more likely tokens; 0: the likeliest always")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
  sample_command->add_option("--top-k", sample->options.top_k, "Only the k likeliest tokens; 0 = all")
      ->capture_default_str();
  sample_command->add_option("--seed", sample->options.seed, "The same seed gives the same text")
      ->capture_default_str();
  sample_command->callback([sample, &action] {
    action = [sample] {
      fmt::print("{}\n", sample_text(sample->config.load(), sample->options));
      return kExitOk;
    };
  });
}

}  // namespace terrace
