// The only source that knows toml++.
#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <type_traits>
#include <utility>

#include "src/base/fail.h"
#include "src/base/units.h"
#include "src/config/keys.h"

namespace terrace {
namespace {

// Where a value stands, for messages: "file.toml:12" or "--set train.steps=x".
struct Source {
  std::string name;
  bool numbered = true;  // has lines
  std::string at(const toml::node& node) const {
    return numbered ? fmt::format("{}:{}", name, node.source().begin.line) : name;
  }
};

std::string describe_got(const toml::node& node) {
  if (const auto* text = node.as_string()) return fmt::format("\"{}\"", text->get());
  if (const auto* value = node.as_integer()) return fmt::format("{}", value->get());
  if (const auto* value = node.as_floating_point()) return fmt::format("{}", value->get());
  if (const auto* value = node.as_boolean()) return value->get() ? "true" : "false";
  if (node.is_table()) return "a table";
  if (node.is_array()) return "a list";
  return "a date or time";
}

[[noreturn]] void refuse(const Source& source, const ConfigKey& key, const toml::node& node) {
  fail(ErrorCode::invalid_argument, "{}: {}: wanted {}; got {}", source.at(node), key.name,
       describe_wanted(key), describe_got(node));
}

// The number behind an integer or a size; nothing when the node is neither.
std::optional<std::int64_t> read_integer(const ConfigKey& key, const toml::node& node) {
  if (const auto* value = node.as_integer()) return value->get();
  const auto* text = node.as_string();
  if (text == nullptr) return std::nullopt;
  if (key.form == KeyForm::integer_or_auto && text->get() == "auto") return -1;
  if (key.form != KeyForm::size && key.form != KeyForm::nvme_paths) return std::nullopt;
  const auto bytes = parse_bytes(text->get());
  if (!bytes) return std::nullopt;
  return static_cast<std::int64_t>(*bytes);
}

void assign_integer(const Source& source, const ConfigKey& key, const toml::node& node,
                    const ConfigField& field) {
  const auto value = read_integer(key, node);
  if (!value) refuse(source, key, node);
  const bool is_auto = key.form == KeyForm::integer_or_auto && node.is_string();
  if (!is_auto && !in_range(key.range, static_cast<double>(*value))) refuse(source, key, node);
  std::visit(
      [&](auto* target) {
        using T = std::remove_pointer_t<decltype(target)>;
        if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
          if (!std::in_range<T>(*value)) refuse(source, key, node);
          *target = static_cast<T>(*value);
        } else {
          check(false, "{} is not bound to an integer", key.name);
        }
      },
      field);
}

void assign_placement(const Source& source, const ConfigKey& key, const toml::node& node,
                      PlacementShares& target) {
  PlacementShares shares;
  shares.automatic = false;
  const auto share_of = [&shares](std::string_view tier) -> double* {
    if (tier == "device") return &shares.device;
    if (tier == "host") return &shares.host;
    if (tier == "nvme") return &shares.nvme;
    return nullptr;
  };
  if (const auto* word = node.as_string()) {
    if (word->get() == "auto") {
      target = PlacementShares{};
      return;
    }
    double* share = share_of(word->get());
    if (share == nullptr) refuse(source, key, node);
    *share = 1;
    target = shares;
    return;
  }
  const auto* table = node.as_table();
  if (table == nullptr || table->empty()) refuse(source, key, node);
  double sum = 0;
  for (const auto& [tier, value] : *table) {
    double* share = share_of(tier.str());
    if (share == nullptr) {
      fail(ErrorCode::invalid_argument, "{}: {}.{}: no such tier; wanted device, host or nvme",
           source.at(value), key.name, tier.str());
    }
    const auto number = value.value<double>();
    if (!value.is_number() || !number || !(*number >= 0 && *number <= 1)) {
      fail(ErrorCode::invalid_argument, "{}: {}.{}: wanted a share from 0 to 1; got {}", source.at(value),
           key.name, tier.str(), describe_got(value));
    }
    *share = *number;
    sum += *number;
  }
  if (std::abs(sum - 1) > 1e-9) {
    fail(ErrorCode::invalid_argument, "{}: {}: wanted shares that add up to 1; got a sum of {}",
         source.at(node), key.name, sum);
  }
  target = shares;
}

void assign_nvme(const Source& source, const ConfigKey& key, const toml::node& node,
                 std::vector<NvmePath>& target) {
  const auto* list = node.as_array();
  if (list == nullptr) refuse(source, key, node);
  std::vector<NvmePath> paths;
  for (const auto& item : *list) {
    const auto* table = item.as_table();
    if (table == nullptr) refuse(source, key, item);
    NvmePath path;
    for (const auto& [name, value] : *table) {
      if (name.str() == "path" && value.is_string()) {
        path.path = value.as_string()->get();
      } else if (name.str() == "size" && (value.is_string() || value.is_integer())) {
        const auto bytes = read_integer(key, value);
        if (!bytes || *bytes <= 0) {
          fail(ErrorCode::invalid_argument, "{}: {}.size: wanted a size above 0 such as \"1TiB\"; got {}",
               source.at(value), key.name, describe_got(value));
        }
        path.size_bytes = static_cast<std::uint64_t>(*bytes);
      } else {
        fail(ErrorCode::invalid_argument,
             "{}: {}.{}: wanted path (a string) or size (such as \"1TiB\"); got {}", source.at(value),
             key.name, name.str(), describe_got(value));
      }
    }
    if (path.path.empty()) {
      fail(ErrorCode::invalid_argument, "{}: {}: an entry without a path; wanted {}", source.at(item),
           key.name, describe_wanted(key));
    }
    paths.push_back(std::move(path));
  }
  target = std::move(paths);
}

// One key of an entry of optimizer.groups.
void assign_group_key(const Source& source, const std::string& name, std::string_view leaf,
                      const toml::node& value, ParameterGroup& group) {
  static constexpr std::array<std::string_view, 4> kLeaves{"match", "lr_ratio", "weight_decay", "frozen"};
  if (std::ranges::find(kLeaves, leaf) == kLeaves.end()) {
    const auto nearest = std::ranges::min_element(
        kLeaves, {}, [leaf](std::string_view known) { return edit_distance(leaf, known); });
    fail(ErrorCode::invalid_argument, "{}: {}.{}: no such key; the nearest is {}.{}", source.at(value), name,
         leaf, name, *nearest);
  }
  if (leaf == "match") {
    const auto* text = value.as_string();
    if (text == nullptr || text->get().empty()) {
      fail(ErrorCode::invalid_argument, "{}: {}.match: wanted a pattern such as \"*.bias\"; got {}",
           source.at(value), name, describe_got(value));
    }
    group.match = text->get();
    return;
  }
  if (leaf == "frozen") {
    if (!value.is_boolean()) {
      fail(ErrorCode::invalid_argument, "{}: {}.frozen: wanted true or false; got {}", source.at(value), name,
           describe_got(value));
    }
    group.frozen = value.as_boolean()->get();
    return;
  }
  const auto number = value.value<double>();
  if (!value.is_number() || !number || !std::isfinite(*number) || *number < 0) {
    fail(ErrorCode::invalid_argument, "{}: {}.{}: wanted a number, at least 0; got {}", source.at(value),
         name, leaf, describe_got(value));
  }
  if (leaf == "lr_ratio") {
    group.lr_ratio = *number;
  } else {
    group.weight_decay = *number;
  }
}

void assign_groups(const Source& source, const ConfigKey& key, const toml::node& node,
                   std::vector<ParameterGroup>& target) {
  const auto* list = node.as_array();
  if (list == nullptr) refuse(source, key, node);
  std::vector<ParameterGroup> groups;
  for (const auto& item : *list) {
    const auto* table = item.as_table();
    if (table == nullptr) refuse(source, key, item);
    const std::string name = fmt::format("{}[{}]", key.name, groups.size());
    ParameterGroup group;
    for (const auto& [leaf, value] : *table) assign_group_key(source, name, leaf.str(), value, group);
    if (group.match.empty()) {
      fail(ErrorCode::invalid_argument, "{}: {}: an entry without a match; wanted {}", source.at(item), name,
           describe_wanted(key));
    }
    if (group.frozen && (table->contains("lr_ratio") || table->contains("weight_decay"))) {
      fail(ErrorCode::invalid_argument, "{}: {}: frozen with a rate or a decay; wanted one or the other",
           source.at(item), name);
    }
    groups.push_back(std::move(group));
  }
  target = std::move(groups);
}

void assign(const Source& source, const ConfigKey& key, const toml::node& node, Config& config) {
  const ConfigField field = key.field(config);
  switch (key.form) {
    case KeyForm::integer:
    case KeyForm::integer_or_auto:
    case KeyForm::size:
      return assign_integer(source, key, node, field);
    case KeyForm::number_or_word:
      if (const auto* word = node.as_string()) {
        const auto found = std::ranges::find(key.choices, word->get());
        if (found == key.choices.end()) refuse(source, key, node);
        *std::get<double*>(field) = -1.0 - static_cast<double>(found - key.choices.begin());
        return;
      }
      [[fallthrough]];
    case KeyForm::number: {
      const auto number = node.value<double>();
      if (!node.is_number() || !number || !std::isfinite(*number) || !in_range(key.range, *number)) {
        refuse(source, key, node);
      }
      *std::get<double*>(field) = *number;
      return;
    }
    case KeyForm::flag:
      if (!node.is_boolean()) refuse(source, key, node);
      *std::get<bool*>(field) = node.as_boolean()->get();
      return;
    case KeyForm::text:
    case KeyForm::choice: {
      const auto* text = node.as_string();
      if (text == nullptr) refuse(source, key, node);
      const auto& choices = key.choices;
      if (key.form == KeyForm::choice && std::ranges::find(choices, text->get()) == choices.end()) {
        refuse(source, key, node);
      }
      *std::get<std::string*>(field) = text->get();
      return;
    }
    case KeyForm::placement:
      return assign_placement(source, key, node, *std::get<PlacementShares*>(field));
    case KeyForm::nvme_paths:
      return assign_nvme(source, key, node, *std::get<std::vector<NvmePath>*>(field));
    case KeyForm::parameter_groups:
      return assign_groups(source, key, node, *std::get<std::vector<ParameterGroup>*>(field));
  }
}

// `name` is no key: says where it belongs when another table has it, else names the nearest key.
[[noreturn]] void refuse_unknown(const std::string& where, const std::string& name) {
  const std::string leaf = name.substr(name.rfind('.') + 1);
  for (const auto& key : config_keys()) {
    if (key.leaf() == leaf) {
      fail(ErrorCode::invalid_argument, "{}: {}: this key belongs in [{}], as {}", where, name, key.table(),
           key.name);
    }
  }
  fail(ErrorCode::invalid_argument, "{}: {}: no such key; the nearest is {}", where, name,
       nearest_key(name).name);
}

bool is_table_name(std::string_view name) {
  return std::ranges::find(config_keys(), name, &ConfigKey::table) != config_keys().end();
}

void apply(const Source& source, const toml::table& root, Config& config) {
  for (const auto& [table_name, table_node] : root) {
    const std::string table(table_name.str());
    if (!is_table_name(table)) {
      if (table_node.is_table() &&
          !table_node.as_table()->empty()) {  // blame a key of it: that is what was meant
        const auto first = table_node.as_table()->cbegin();
        refuse_unknown(source.at(first->second), fmt::format("{}.{}", table, first->first.str()));
      }
      refuse_unknown(source.at(table_node), table);
    }
    if (!table_node.is_table()) {
      fail(ErrorCode::invalid_argument, "{}: {}: wanted a table, [{}] with keys below it; got {}",
           source.at(table_node), table, table, describe_got(table_node));
    }
    for (const auto& [leaf, node] : *table_node.as_table()) {
      const std::string name = fmt::format("{}.{}", table, leaf.str());
      const ConfigKey* key = find_key(name);
      if (key == nullptr) refuse_unknown(source.at(node), name);
      assign(source, *key, node, config);
    }
  }
}

toml::table parse(const std::string& text, const std::string& name) {
  try {
    return toml::parse(text, name);
  } catch (const toml::parse_error& error) {
    fail(ErrorCode::invalid_argument, "{}:{}:{}: not TOML: {}", name, error.source().begin.line,
         error.source().begin.column, error.description());
  }
}

// `text` as a TOML value, or as a bare string where it is none ("train.recompute=always", "tiers.host=2GiB").
toml::table parse_override(const ConfigKey& key, const std::string& text) {
  const bool is_text = key.form == KeyForm::text || key.form == KeyForm::choice;
  try {
    toml::table table = toml::parse("value = " + text);
    const auto* value = table.get("value");
    if (table.size() == 1 && value != nullptr && (!is_text || value->is_string())) return table;
  } catch (const toml::parse_error&) {
  }
  toml::table table;
  table.insert("value", text);
  return table;
}

void apply_override(const std::string& text, Config& config) {
  const Source source{"--set " + text, false};
  const auto equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    fail(ErrorCode::invalid_argument, "{}: wanted KEY=VALUE such as train.steps=20", source.name);
  }
  std::string name = text.substr(0, equals);
  while (!name.empty() && name.back() == ' ') name.pop_back();
  const ConfigKey* key = find_key(name);
  if (key == nullptr) refuse_unknown(source.name, name);
  const toml::table table = parse_override(*key, text.substr(equals + 1));
  assign(source, *key, *table.get("value"), config);
}

std::string read_text(const std::string& file) {
  std::error_code status;
  if (std::filesystem::is_directory(file, status)) {
    fail(ErrorCode::invalid_argument, "{}: wanted a configuration file; got a directory", file);
  }
  std::ifstream stream(file, std::ios::binary);
  if (!stream)
    fail(ErrorCode::not_found, "{}: cannot open the configuration: {}", file, std::strerror(errno));
  std::string text{std::istreambuf_iterator<char>(stream), {}};
  if (stream.bad())
    fail(ErrorCode::io_failed, "{}: cannot read the configuration: {}", file, std::strerror(errno));
  return text;
}

}  // namespace

Config load_config(const std::string& file, const std::vector<std::string>& overrides) {
  Config config;
  apply({file}, parse(read_text(file), file), config);
  for (const auto& text : overrides) apply_override(text, config);
  check_config(config, overrides.empty() ? file : file + " with --set");
  return config;
}

}  // namespace terrace
