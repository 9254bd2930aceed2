// Ranks in words, for errors.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

namespace terrace {

// "rank 3", or "ranks 1 and 3".
template <typename Rank>
std::string rank_words(const std::vector<Rank>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, " and "));
}

}  // namespace terrace
