// Which extents are the store's last commit. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "io/store_record.h"
#include "io/store_trailer.h"

namespace terrace {

inline constexpr int kNoExtent = -1;

// Both trailers of one chunk, as read.
using ChunkTrailers = std::array<TrailerRead, 2>;

struct Cut {
  std::vector<int> extents;             // of each chunk: 0, 1 or kNoExtent (reads as its initial value)
  Hash128 sum;                          // of cut_term over them
  std::vector<std::size_t> damaged;     // chunks with a trailer that is neither blank nor valid
  std::vector<std::size_t> from_later;  // chunks with an extent of an epoch that the record does not know yet
};

// Each chunk's newest valid extent whose (epoch, step) was committed. Compare `sum` with the record's.
Cut choose_cut(const Record& record, std::span<const Hash128> identities,
               std::span<const ChunkTrailers> trailers);

// The entries of `epochs` that a chosen extent carries, ascending. `carried` holds the epochs of the cut's
// extents.
std::vector<EpochEntry> carried_epochs(std::span<const EpochEntry> epochs,
                                       std::span<const std::uint64_t> carried);

}  // namespace terrace
