// How a rank's part is cut on its way to be folded. Both ends of a transfer compute the same.
#pragma once

#include <cstdint>

#include "src/base/units.h"

namespace terrace {

inline constexpr std::uint64_t kFoldBufferBytes = 8 * kMiB;  // of a handle, up to 65 ranks
// Whole blocks of sums in fp32 and bf16, and as much as the fold takes at once.
inline constexpr std::uint64_t kFoldTileUnit = 4 * kBlockNumel * 4;

// Of one contribution to one round of receiving; the buffer holds two rounds of all others' tiles.
std::uint64_t mpi_fold_tile_bytes(int ranks);

}  // namespace terrace
