#include "src/base/units.h"

#include <spdlog/fmt/fmt.h>

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace terrace {

std::string format_bytes(std::uint64_t bytes) {
  static constexpr std::array<std::pair<std::uint64_t, const char*>, 4> kUnits{
      {{kGiB * 1024, "TiB"}, {kGiB, "GiB"}, {kMiB, "MiB"}, {kKiB, "KiB"}}};
  for (const auto& [size, name] : kUnits) {
    if (bytes >= size) {
      if (bytes % size == 0) return fmt::format("{} {}", bytes / size, name);
      return fmt::format("{:.2f} {}", static_cast<double>(bytes) / static_cast<double>(size), name);
    }
  }
  return fmt::format("{} B", bytes);
}

std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, double>, 10> kUnits{{{"", 1.0},
                                                                               {"B", 1.0},
                                                                               {"KiB", 0x1p10},
                                                                               {"MiB", 0x1p20},
                                                                               {"GiB", 0x1p30},
                                                                               {"TiB", 0x1p40},
                                                                               {"KB", 1e3},
                                                                               {"MB", 1e6},
                                                                               {"GB", 1e9},
                                                                               {"TB", 1e12}}};
  double number = 0;
  const auto [rest, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status != std::errc{} || !(number >= 0)) return std::nullopt;
  std::string_view unit(rest, static_cast<std::size_t>(text.data() + text.size() - rest));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  for (const auto& [name, factor] : kUnits) {
    if (unit == name) {
      const double bytes = number * factor;
      if (!(bytes < 0x1p63)) return std::nullopt;
      return static_cast<std::uint64_t>(std::llround(bytes));
    }
  }
  return std::nullopt;
}

}  // namespace terrace
