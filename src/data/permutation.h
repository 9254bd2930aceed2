// A seeded permutation of [0, count) with random access and no table.
#pragma once

#include <array>
#include <cstdint>

namespace terrace {

// A balanced Feistel network over the smallest even number of bits that holds count - 1, with Philox as its
// round function; values that fall outside [0, count) walk on along their cycle until they are inside (Black
// and Rogaway, "Ciphers with arbitrary finite domains", 2002). Thread-safe. Cost: at most 4 walks of 6 Philox
// calls on average.
class Permutation {
 public:
  Permutation(std::uint64_t count, std::uint64_t seed, std::uint64_t epoch);
  // index must be below count (internal error).
  std::uint64_t operator()(std::uint64_t index) const;

 private:
  static constexpr std::uint32_t kRounds = 6;
  std::uint64_t encrypt(std::uint64_t value) const;

  std::uint64_t count_;
  std::uint32_t half_bits_;
  std::array<std::uint32_t, 2> key_;
  std::uint64_t epoch_;
};

}  // namespace terrace
