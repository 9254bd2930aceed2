#include "src/engine/alike.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include "src/base/fail.h"
#include "src/base/hash.h"
#include "src/collectives/rank_words.h"

namespace terrace {
namespace {

using Ranks = std::vector<std::uint32_t>;

constexpr std::size_t kMostTold = 4;

// "2 on rank 0, 4 on ranks 1 and 2": values in the order of the first rank that has each.
std::string values_text(const std::vector<Settings>& all, const std::string& name) {
  std::vector<std::pair<std::string, Ranks>> values;
  for (std::uint32_t rank = 0; rank < all.size(); ++rank) {
    const auto own = std::ranges::find(all[rank], name, &Settings::value_type::first);
    const std::string value = own == all[rank].end() ? "nothing" : own->second;
    auto found = std::ranges::find(values, value, &std::pair<std::string, Ranks>::first);
    if (found == values.end()) found = values.insert(values.end(), {value, {}});
    found->second.push_back(rank);
  }
  if (values.size() < 2) return "";
  std::string text;
  for (const auto& [value, ranks] : values) {
    text += fmt::format("{}{} on {}", text.empty() ? "" : ", ", value, rank_words(ranks));
  }
  return text;
}

std::string differences(const std::vector<Settings>& all) {
  std::vector<std::string> told;
  std::map<std::string, bool> seen;
  for (const Settings& settings : all) {
    for (const auto& [name, value] : settings) {
      if (!seen.try_emplace(name, true).second) continue;
      const std::string values = values_text(all, name);
      if (!values.empty()) told.push_back(fmt::format("{} = {}", name, values));
    }
  }
  const std::size_t more = told.size() - std::min(told.size(), kMostTold);
  told.resize(told.size() - more);
  return fmt::format("{}{}", fmt::join(told, "; "), more > 0 ? fmt::format("; and {} more", more) : "");
}

}  // namespace

void require_alike(Communicator& world, const Settings& own) {
  // Paths may be no UTF-8.
  const std::string text = nlohmann::json(own).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const Hash128 hash = hash128(text);
  const std::array<std::uint64_t, 3> mine{hash.low, hash.high, text.size()};
  const auto ranks = static_cast<std::size_t>(world.size());
  std::vector<std::uint64_t> numbers(mine.size() * ranks);
  world.all_gather({"the configuration", kNoUnit, 0}, WireType::u64, equal_parts(world.size(), mine.size()),
                   std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(numbers)));
  bool same = true;
  std::vector<std::uint64_t> sizes;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto theirs = std::span(numbers).subspan(rank * mine.size(), mine.size());
    same = same && std::ranges::equal(theirs, mine);
    sizes.push_back(theirs[2]);
  }
  if (same) return;
  const std::vector<Part> parts = consecutive_parts(sizes);
  std::string texts(parts.back().offset + parts.back().numel, '\0');
  world.all_gather({"the configuration", kNoUnit, 0}, WireType::u8, parts, std::as_bytes(std::span(text)),
                   std::as_writable_bytes(std::span(texts)));
  std::vector<Settings> all;
  for (const Part& part : parts)
    all.push_back(nlohmann::json::parse(texts.substr(part.offset, part.numel)).get<Settings>());
  fail(ErrorCode::invalid_argument, "the processes of a run were not given the same: {}", differences(all));
}

}  // namespace terrace
