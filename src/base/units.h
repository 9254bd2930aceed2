// Sizes as people write them ("512MiB") and as we print them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace terrace {

inline constexpr std::uint64_t kKiB = std::uint64_t{1} << 10;
inline constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

// The canonical granule of sums: shard and chunk borders are multiples of it.
inline constexpr std::uint64_t kBlockNumel = 4096;

constexpr std::uint64_t div_up(std::uint64_t a, std::uint64_t b) {
  return (a + b - 1) / b;
}
constexpr std::uint64_t round_up(std::uint64_t a, std::uint64_t multiple) {
  return div_up(a, multiple) * multiple;
}

// "1.50 GiB", "512 MiB", "17 B".
std::string format_bytes(std::uint64_t bytes);

// Accepts "4096", "64KiB", "1.5 GiB", "2GB" (decimal); nothing when it is not a size or does not fit 63 bits.
std::optional<std::uint64_t> parse_bytes(std::string_view text);

}  // namespace terrace
