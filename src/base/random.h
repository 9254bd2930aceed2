// Counter-based random numbers: a value depends only on (seed, stream, element, step), never on the order or
// the place in which values are drawn. Philox 4x32-10 (Salmon et al., SC'11).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace terrace {

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key);

// 64 random bits for `element` of the stream named by (seed, name, step). For loops, hash the name once.
std::uint64_t random_bits(std::uint64_t seed, std::uint64_t name_hash, std::uint64_t element,
                          std::uint64_t step);

// A standard normal value, the same bits on every machine (inverse of the distribution function by rational
// approximation, relative error below 1.2e-9; P. J. Acklam's coefficients).
double random_normal(std::uint64_t seed, std::uint64_t name_hash, std::uint64_t element, std::uint64_t step);

// The inverse of the standard normal distribution function for 0 < p < 1, and the natural logarithm it uses:
// both in plain IEEE arithmetic, so that no library version shows in the bits.
double inverse_normal(double p);
double portable_log(double x);

}  // namespace terrace
