// Checksums and identities: XXH3, in the fastest form the processor has.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace terrace {

struct Hash128 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  friend auto operator<=>(const Hash128&, const Hash128&) = default;
  // Addition modulo 2^128: an order-independent sum.
  Hash128& operator+=(const Hash128& other);
  Hash128& operator-=(const Hash128& other);
};

std::uint64_t hash64(const void* data, std::size_t bytes, std::uint64_t seed = 0);
Hash128 hash128(const void* data, std::size_t bytes, std::uint64_t seed = 0);
inline std::uint64_t hash64(std::string_view text) {
  return hash64(text.data(), text.size());
}
inline Hash128 hash128(std::string_view text) {
  return hash128(text.data(), text.size());
}
std::string to_hex(const Hash128& hash);  // 32 digits, high half first

}  // namespace terrace
