#include "src/base/hash.h"

#include <spdlog/fmt/fmt.h>
#include <xxh_x86dispatch.h>

namespace terrace {

Hash128& Hash128::operator+=(const Hash128& other) {
  low += other.low;
  high += other.high + (low < other.low ? 1 : 0);
  return *this;
}

Hash128& Hash128::operator-=(const Hash128& other) {
  const bool borrow = low < other.low;
  low -= other.low;
  high -= other.high + (borrow ? 1 : 0);
  return *this;
}

std::uint64_t hash64(const void* data, std::size_t bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed_dispatch(data, bytes, seed);
}

Hash128 hash128(const void* data, std::size_t bytes, std::uint64_t seed) {
  const XXH128_hash_t hash = XXH3_128bits_withSeed_dispatch(data, bytes, seed);
  return {hash.low64, hash.high64};
}

std::string to_hex(const Hash128& hash) {
  return fmt::format("{:016x}{:016x}", hash.high, hash.low);
}

}  // namespace terrace
