// The one table of keys: the reader, the writer, the checks of ranges and docs/configuration.md all derive
// from it.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "terrace/config.h"

namespace terrace {

enum class KeyForm {
  integer,          // 12
  integer_or_auto,  // 5, or "auto" (stored as -1)
  size,             // "512MiB", or a number of bytes
  number,           // 0.1
  number_or_word,   // 0.1, or one of `choices` (the i-th is stored as -1 - i; the range holds no negative)
  flag,             // true
  text,             // "a string"
  choice,           // one of `choices`
  placement,        // "auto", a tier, or {host = 0.5, nvme = 0.5}
  nvme_paths,       // [{path = "...", size = "1TiB"}]
  parameter_groups  // [{match = "*.bias", lr_ratio = 2, weight_decay = 0}]
};

using ConfigField = std::variant<std::uint32_t*, std::uint64_t*, std::int64_t*, double*, bool*, std::string*,
                                 PlacementShares*, std::vector<NvmePath>*, std::vector<ParameterGroup>*>;

struct KeyRange {
  double min = 0;
  double max = std::numeric_limits<double>::infinity();
  bool min_open = false;  // min itself is refused
  bool max_open = false;
};

struct ConfigKey {
  std::string_view name;  // "train.steps": table, dot, key
  KeyForm form = KeyForm::text;
  std::string_view unit;                  // for people; empty = none
  KeyRange range;                         // integer, integer_or_auto, size, number, number_or_word
  std::vector<std::string_view> choices;  // choice, number_or_word
  ConfigField (*field)(Config&) = nullptr;
  std::string_view doc;

  std::string_view table() const { return name.substr(0, name.find('.')); }
  std::string_view leaf() const { return name.substr(name.find('.') + 1); }
};

// In the order of the documentation; keys of one table stand together.
std::span<const ConfigKey> config_keys();
const ConfigKey* find_key(std::string_view name);
std::string_view table_doc(std::string_view table);

// "an integer, at least 1", "a size such as \"512MiB\"": what a message or the documentation says is wanted.
std::string describe_wanted(const ConfigKey& key);
bool in_range(const KeyRange& range, double value);

// The word that a number_or_word key holds as `value`; empty where that is a number.
std::string_view word_of(const ConfigKey& key, double value);

// Edits (insert, delete, replace, swap of neighbours) between two words: the restricted Damerau-Levenshtein
// distance.
std::size_t edit_distance(std::string_view a, std::string_view b);
// The known key nearest to `name`; equal distances: the first of the table.
const ConfigKey& nearest_key(std::string_view name);

// The value of `key` in `config` as TOML.
std::string value_as_toml(const ConfigKey& key, const Config& config);

// What no single key shows: heads that do not divide the width, shares that do not add up, and so on. Throws
// invalid_argument that begins with `source` ("file.toml") and names the keys.
void check_config(const Config& config, const std::string& source);

}  // namespace terrace
