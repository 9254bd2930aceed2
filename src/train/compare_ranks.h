// Do all ranks compute with the same parameters? Asked of the very bytes that their forward passes read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/train/session.h"

namespace terrace {

// Above this a comparison is refused: it keeps a copy of all parameters for each rank.
inline constexpr std::uint64_t kMostComparedParameters = std::uint64_t{1} << 26;

struct RankDifferences {
  std::uint64_t parameters = 0;   // compared on each rank, padding left out
  std::vector<double> largest{};  // by rank: max |rank 0's - its|; NaN where one of them is none
};

// Runs an evaluation without samples on every rank, with copies of what its forward calls are given as
// parameters. Wants nothing pending, and a session made to compare ranks; every process of the run calls.
RankDifferences compare_ranks(Session& session);

// "max |rank 0 - rank 1| = 0 over 17639 parameters", a line a rank.
std::string to_text(const RankDifferences& differences);

// `data` as doubles, which hold every value exactly.
std::vector<double> to_doubles(DType dtype, std::span<const std::byte> data);

// max |a[i] - b[i]|; 0 for equal infinities, NaN where one of them is none.
double largest_difference(std::span<const double> a, std::span<const double> b);

}  // namespace terrace
