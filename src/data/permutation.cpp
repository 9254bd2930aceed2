#include "src/data/permutation.h"

#include <algorithm>
#include <bit>

#include "src/base/fail.h"
#include "src/base/random.h"

namespace terrace {

Permutation::Permutation(std::uint64_t count, std::uint64_t seed, std::uint64_t epoch)
    : count_(count),
      half_bits_(0),
      key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
      epoch_(epoch) {
  check(count > 0, "a permutation of nothing");
  half_bits_ = std::max(1u, static_cast<std::uint32_t>(std::bit_width(count - 1) + 1) / 2);
}

// (left, right) -> (right, left ^ f(right)): a bijection whatever f is.
std::uint64_t Permutation::encrypt(std::uint64_t value) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_;
  std::uint64_t right = value & mask;
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    const auto random =
        philox4x32({static_cast<std::uint32_t>(right), round, static_cast<std::uint32_t>(epoch_),
                    static_cast<std::uint32_t>(epoch_ >> 32)},
                   key_);
    const std::uint64_t next = (left ^ random[0]) & mask;
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

std::uint64_t Permutation::operator()(std::uint64_t index) const {
  check(index < count_, "index {} of a permutation of {}", index, count_);
  do {
    index = encrypt(index);
  } while (index >= count_);
  return index;
}

}  // namespace terrace
