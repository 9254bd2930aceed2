// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace terrace {

std::string grouped(std::uint64_t value);    // "1,234,567", whatever the locale
std::string size_text(std::uint64_t bytes);  // "512.00 MiB", "17 B"
std::string duration_text(
    double seconds);  // "45s", "1m20s", "2h05m", "3d04h"; "?" for what is not finite or negative

}  // namespace terrace
