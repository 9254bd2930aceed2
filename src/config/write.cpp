#include <spdlog/fmt/fmt.h>

#include <cmath>
#include <type_traits>
#include <utility>

#include "src/base/fail.h"
#include "src/base/units.h"
#include "src/config/keys.h"

namespace terrace {
namespace {

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\u{:04X}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

// The shortest digits that read back to the same value, and always a TOML float.
std::string float_text(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

// "512MiB" where the size is a whole number of a binary unit, else the bytes.
std::string size_text(std::uint64_t bytes) {
  for (const auto& [unit, name] : {std::pair{kGiB, "GiB"}, std::pair{kMiB, "MiB"}, std::pair{kKiB, "KiB"}}) {
    if (bytes > 0 && bytes % unit == 0) return fmt::format("\"{}{}\"", bytes / unit, name);
  }
  return fmt::format("{}", bytes);
}

std::string placement_text(const PlacementShares& shares) {
  if (shares.automatic) return "\"auto\"";
  std::string text;
  for (const auto& [name, share] :
       {std::pair{"device", shares.device}, std::pair{"host", shares.host}, std::pair{"nvme", shares.nvme}}) {
    if (share == 1) return quoted(name);
    if (share > 0) text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", name, float_text(share));
  }
  return "{" + text + "}";
}

std::string nvme_text(const std::vector<NvmePath>& paths) {
  std::string text;
  for (const auto& path : paths) {
    text += fmt::format("{}{{path = {}", text.empty() ? "" : ", ", quoted(path.path));
    if (path.size_bytes > 0) text += ", size = " + size_text(path.size_bytes);
    text += "}";
  }
  return "[" + text + "]";
}

std::string groups_text(const std::vector<ParameterGroup>& groups) {
  std::string text;
  for (const auto& group : groups) {
    text += fmt::format("{}{{match = {}", text.empty() ? "" : ", ", quoted(group.match));
    text += group.frozen ? ", frozen = true" : ", lr_ratio = " + float_text(group.lr_ratio);
    if (group.weight_decay) text += ", weight_decay = " + float_text(*group.weight_decay);
    text += "}";
  }
  return "[" + text + "]";
}

}  // namespace

std::string value_as_toml(const ConfigKey& key, const Config& config) {
  Config copy = config;
  return std::visit(
      [&](const auto* field) -> std::string {
        using T = std::remove_cvref_t<decltype(*field)>;
        if constexpr (std::is_same_v<T, bool>) {
          return *field ? "true" : "false";
        } else if constexpr (std::is_same_v<T, double>) {
          const std::string_view word = word_of(key, *field);
          return word.empty() ? float_text(*field) : quoted(word);
        } else if constexpr (std::is_same_v<T, std::string>) {
          return quoted(*field);
        } else if constexpr (std::is_same_v<T, PlacementShares>) {
          return placement_text(*field);
        } else if constexpr (std::is_same_v<T, std::vector<NvmePath>>) {
          return nvme_text(*field);
        } else if constexpr (std::is_same_v<T, std::vector<ParameterGroup>>) {
          return groups_text(*field);
        } else {
          if (key.form == KeyForm::integer_or_auto && std::cmp_less(*field, 0)) return "\"auto\"";
          if (key.form == KeyForm::size) return size_text(static_cast<std::uint64_t>(*field));
          return fmt::format("{}", *field);
        }
      },
      key.field(copy));
}

std::string to_toml(const Config& config) {
  std::string text;
  std::string_view table;
  for (const auto& key : config_keys()) {
    if (key.table() != table) {
      text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", key.table());
      table = key.table();
    }
    text += fmt::format("{} = {}\n", key.leaf(), value_as_toml(key, config));
  }
  return text;
}

std::string config_reference() {
  std::string text =
      "# Configuration\n\n"
      "Generated from the table that reads it (`terrace config-reference`); a test compares the two.\n\n"
      "A configuration is a TOML file. Every key has a default; `--set KEY=VALUE` overrides one, with the "
      "same "
      "checks. An unknown,\nmisplaced or ill-typed key is refused by file, line and key. Sizes are strings "
      "such as "
      "`\"512MiB\"` or `\"2GB\"`, or a number of\nbytes. Relative paths start at the current directory.\n";
  std::string_view table;
  const Config defaults;
  for (const auto& key : config_keys()) {
    if (key.table() != table) {
      table = key.table();
      text += fmt::format(
          "\n## [{}]\n\n{}\n\n| key | default | unit | wanted | meaning |\n|---|---|---|---|---|\n", table,
          table_doc(table));
    }
    text += fmt::format("| `{}` | `{}` | {} | {} | {} |\n", key.name, value_as_toml(key, defaults), key.unit,
                        describe_wanted(key), key.doc);
  }
  return text;
}

}  // namespace terrace
