// Data that every rank can compute for every other, and the slow references.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "src/collectives/collective.h"

namespace terrace {

inline constexpr std::byte kUntouched{0xCC};
inline constexpr DType kGradientTypes[] = {DType::f32, DType::bf16, DType::f16};
inline constexpr WireType kWireTypes[] = {WireType::f32, WireType::bf16, WireType::f16, WireType::u8,
                                          WireType::i64, WireType::u64,  WireType::f64};

inline std::size_t at(int rank) {
  return static_cast<std::size_t>(rank);
}

// One seed for (what, rank).
std::uint64_t seed_of(std::uint64_t what, int rank);

std::vector<std::byte> random_bytes(std::uint64_t seed, std::uint64_t bytes);

// Finite values of several magnitudes, some of them -0, as the bytes of `dtype`.
std::vector<std::byte> random_gradient(std::uint64_t seed, DType dtype, std::uint64_t numel);

float element(std::span<const std::byte> values, DType dtype, std::uint64_t index);

// The element's sum over the contributions given, in their order, rounded to dtype where `last`.
float plain_fold(const std::vector<std::vector<std::byte>>& contributions, DType dtype, std::uint64_t index,
                 bool last);

// The sum of squares of a block, as kernels/cpu/gradient.h gives it; infinite where an element is not finite.
double plain_block_sum(std::span<const float> values);

// Parts with gaps between them, in an order of their own; returns the elements that they span.
struct Layout {
  std::vector<Part> parts;
  std::uint64_t numel = 0;
};
Layout scattered(std::mt19937_64& random, const std::vector<std::uint64_t>& numels);

// Lengths for `ranks` parts: zeros, ones, primes, borders of blocks, more than a block.
std::vector<std::uint64_t> random_numels(std::mt19937_64& random, int ranks);

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

}  // namespace terrace
