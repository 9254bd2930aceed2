#include <fmt/core.h>

#include <memory>

#include "src/cli/commands.h"
#include "terrace/data.h"

namespace terrace {

void add_data_commands(CLI::App& app, Action& action) {
  struct Arguments {
    std::vector<std::string> files;
    std::string out_dir;
    PrepareOptions options;
  };
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* data = app.add_subcommand("data", "Prepare text for training");
  CLI::App* prepare = data->add_subcommand("prepare", "Text files -> token files");
  prepare->add_option("files", arguments->files, "Text files, laid end to end")
      ->required()
      ->type_name("FILE ...");
  prepare->add_option("--out", arguments->out_dir, "Folder for train.tokens and validation.tokens")
      ->required()
      ->type_name("DIR");
  prepare
      ->add_option("--validation", arguments->options.validation_share,
                   "Share of the text, at its end, held out for evaluation; 0 = none")
      ->capture_default_str();
  prepare
      ->add_option("--token-bytes", arguments->options.token_bytes,
                   "Width of a stored token: 1, 2 or 4; 0 = the narrowest that does")
      ->capture_default_str();
  prepare
      ->add_option("--tokenizer", arguments->options.tokenizer,
                   "bytes: a token a byte; chars: a token a character of UTF-8 text, numbered by code point")
      ->capture_default_str();
  prepare->callback([arguments, &action] {
    action = [arguments] {
      const PrepareResult result = prepare_data(arguments->files, arguments->out_dir, arguments->options);
      fmt::print("{}: {} tokens\n", result.train_path, result.train_tokens);
      if (!result.validation_path.empty()) {
        fmt::print("{}: {} tokens\n", result.validation_path, result.validation_tokens);
      }
      if (!result.alphabet_path.empty()) {
        fmt::print("{}: {} characters\n", result.alphabet_path, result.vocabulary);
      }
      return kExitOk;
    };
  });
}

}  // namespace terrace
