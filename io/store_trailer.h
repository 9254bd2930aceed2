// The 4 KiB block that ends every extent: who it is, which run and step wrote it, and checksums. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/extent_store.h"
#include "src/base/hash.h"

namespace terrace {

struct Trailer {
  Hash128 store_id;
  Hash128 identity;  // identity_of() of the chunk
  std::uint64_t epoch = 0;
  std::uint64_t step = 0;
  std::uint64_t payload_bytes =
      0;  // that lie straight before the trailer (a run state fills less than its extent)
  Hash128 payload_checksum;
  std::uint32_t extent = 0;  // 0 or 1
  std::vector<std::uint64_t> segment_steps;
};

// What a block at a trailer's place turned out to be.
struct TrailerRead {
  enum class State : std::uint8_t { blank, valid, damaged };  // blank: all zero, as allocated
  State state = State::blank;
  Trailer trailer;   // when valid
  Hash128 checksum;  // of the trailer with its payload, when valid
  std::string why;   // when damaged: what was wanted and what was got
};

// The on-disk identity of a chunk, from (tensor, slice, range) of each of its segments.
Hash128 identity_of(std::span<const StoreSegment> segments);
// The identity of the run state's chunk.
Hash128 run_state_identity();

// What an extent adds to the record's sum.
Hash128 cut_term(const Hash128& identity, std::uint64_t epoch, std::uint64_t step);

// Fills the block and returns its checksum, which covers the payload's.
Hash128 encode_trailer(const Trailer& trailer, std::span<std::byte, kTrailerBytes> block);

// Valid means: whole, and written for this store, chunk and extent (`wanted` gives store_id, identity, extent
// and the number of segments).
TrailerRead decode_trailer(std::span<const std::byte, kTrailerBytes> block, const Trailer& wanted);

// Checks a whole extent as read: [payload, padded to 4096][trailer]. `wanted` is what must stand there. Empty
// when it does; else what was wanted and what was got. Cost: one checksum of the payload.
std::string check_extent(std::span<const std::byte> extent, const Trailer& wanted);

}  // namespace terrace
