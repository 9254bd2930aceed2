#include "src/train/process_settings.h"

#include <filesystem>
#include <system_error>

#include "src/base/fail.h"
#include "src/config/keys.h"
#include "src/model/product_library.h"

namespace terrace {
namespace {

bool is_a_process_own(const ConfigKey& key) {
  return key.table() == "io" || key.table() == "compute" || key.name == "data.path" ||
         key.name == "tiers.nvme" || key.name == "store.path";
}

std::string tokens_text(const TokenFile* tokens) {
  if (tokens == nullptr) return "none";
  return fmt::format("{} tokens with checksum {:016x}", tokens->count(), tokens->checksum());
}

// Through links, and from whichever folder the process was started in.
std::string folder_text(const std::string& path) {
  if (path.empty()) return "none";
  std::error_code unknown;
  const std::filesystem::path whole = std::filesystem::weakly_canonical(path, unknown);
  return unknown ? path : whole.string();
}

std::string sizes_text(const std::vector<NvmePath>& paths) {
  std::string text = fmt::format("{} paths", paths.size());
  for (const NvmePath& path : paths) text += fmt::format(", {} bytes", path.size_bytes);
  return text;
}

}  // namespace

Settings process_settings(const Config& config, const TrainOptions& options, const TokenFile& tokens,
                          const TokenFile* validation) {
  Settings settings;
  for (const ConfigKey& key : config_keys()) {
    if (!is_a_process_own(key)) settings.emplace_back(key.name, value_as_toml(key, config));
  }
  settings.emplace_back(std::string("data.path: ") + kTrainTokensName, tokens_text(&tokens));
  settings.emplace_back(std::string("data.path: ") + kValidationTokensName, tokens_text(validation));
  settings.emplace_back("store.path", folder_text(config.store.path));
  settings.emplace_back("tiers.nvme", sizes_text(config.tiers.nvme));
  settings.emplace_back("--resume", options.resume ? "given" : "not given");
  settings.emplace_back("--compare-ranks", options.compare_ranks ? "given" : "not given");
  settings.emplace_back("matrix products", product_library());
  return settings;
}

}  // namespace terrace
