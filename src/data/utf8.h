// UTF-8, strictly: no overlong forms, no surrogates, nothing above U+10FFFF (RFC 3629).
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

namespace terrace {

inline constexpr char32_t kCodePoints = 0x110000;  // every code point is below it

struct CodePoint {
  char32_t value = 0;
  std::size_t bytes = 0;  // that it takes
};

// The code point that `text` begins with; nothing where no valid one does (an empty text, too).
std::optional<CodePoint> first_code_point(std::span<const std::byte> text);

// `value` must be a code point that UTF-8 has (internal error).
void append_utf8(std::string& text, char32_t value);

}  // namespace terrace
