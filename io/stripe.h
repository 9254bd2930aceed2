// Where extents lie: a pure plan of extents over paths.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace terrace {

struct StripePath {
  std::string name;              // for messages
  std::uint64_t size_bytes = 0;  // hard budget
};

struct StripePlan {
  struct Place {
    std::uint32_t path = 0;
    std::uint64_t offset_bytes = 0;
  };
  std::vector<Place> places;              // of each extent
  std::vector<std::uint64_t> used_bytes;  // of each path
};

// Each extent lies whole on one path, aligned to 4096 (sizes are rounded up), none overlap, no path exceeds
// its budget. Neighbours go to the path that is least full for its size, so that a run of extents keeps all
// paths busy in proportion to their sizes. Throws does_not_fit with the budgets and the bytes wanted. Cost:
// O(extents * paths).
StripePlan plan_stripes(std::span<const StripePath> paths, std::span<const std::uint64_t> extent_bytes);

}  // namespace terrace
