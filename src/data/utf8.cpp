#include "src/data/utf8.h"

#include <bit>
#include <cstdint>

#include "src/base/fail.h"

namespace terrace {
namespace {

bool is_surrogate(char32_t value) {
  return value >= 0xD800 && value < 0xE000;
}

// The least value that a sequence of 1 to 4 bytes may stand for.
constexpr char32_t kLeast[] = {0, 0x80, 0x800, 0x10000};

}  // namespace

std::optional<CodePoint> first_code_point(std::span<const std::byte> text) {
  if (text.empty()) return std::nullopt;
  const auto lead = std::to_integer<std::uint8_t>(text[0]);
  if (lead < 0x80) return CodePoint{lead, 1};
  const auto bytes = static_cast<std::size_t>(std::countl_one(lead));  // of the sequence; 1 = not a lead
  if (bytes < 2 || bytes > 4 || bytes > text.size()) return std::nullopt;
  char32_t value = lead & (0xFFu >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    const auto byte = std::to_integer<std::uint8_t>(text[i]);
    if (byte >> 6 != 2) return std::nullopt;
    value = value << 6 | (byte & 0x3Fu);
  }
  if (value < kLeast[bytes - 1] || value >= kCodePoints || is_surrogate(value)) return std::nullopt;
  return CodePoint{value, bytes};
}

void append_utf8(std::string& text, char32_t value) {
  check(value < kCodePoints && !is_surrogate(value), "U+{:04X} in UTF-8", static_cast<std::uint32_t>(value));
  if (value < 0x80) {
    text.push_back(static_cast<char>(value));
    return;
  }
  const int rest = value < kLeast[2] ? 1 : value < kLeast[3] ? 2 : 3;  // bytes after the lead
  const std::uint32_t mark = 0xFF00u >> (rest + 1) & 0xFF;             // rest + 1 ones, then a zero
  text.push_back(static_cast<char>(mark | value >> (6 * rest)));
  for (int i = rest - 1; i >= 0; --i) text.push_back(static_cast<char>(0x80 | (value >> (6 * i) & 0x3F)));
}

}  // namespace terrace
