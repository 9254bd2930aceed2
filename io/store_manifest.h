// What a store consists of: streams, chunks, where their extents lie. Written once, when the store is
// created. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/extent_store.h"
#include "src/base/hash.h"

namespace terrace {

inline constexpr int kStoreFormat = 1;

// One data file.
struct ManifestPath {
  std::string directory;  // relative to the store's where it lies in or below it ("."), else absolute
  std::string file;       // name in that folder
  std::uint64_t file_bytes = 0;
};

// Where a chunk's extents lie: whole on one path.
struct ExtentPlace {
  std::uint32_t path = 0;
  std::array<std::uint64_t, 2> offset_bytes{};  // the second is unused in a store of one extent a chunk
};

struct Manifest {
  Hash128 id;  // random
  bool two_extents = true;
  StoreShape shape;
  std::vector<ManifestPath> paths;
  std::vector<ExtentPlace> places;  // of each chunk, then of the run state (two_extents only)
};

// Bytes of every extent that holds the run state.
inline constexpr std::uint64_t kRunStateExtentBytes = kMaxRunStateBytes + kTrailerBytes;

// Throws invalid_argument naming the chunk for segments that are empty, too many or overlap another chunk's,
// for a payload that is not a multiple of 4096.
void check_shape(const StoreShape& shape);

struct VolumeRoom {
  std::string directory;  // as ManifestPath has it
  std::uint64_t bytes = 0;
};

// Places every extent: each chunk goes to the path that carries least so far among those with room; the run
// state to the first with room. Fills `paths` (one a volume, those that carry nothing too) and `places`.
// Throws does_not_fit with the bytes wanted and those there are.
void place_extents(Manifest& manifest, std::span<const VolumeRoom> volumes);

// JSON whose last key is a checksum over every byte before it. parse_manifest throws corrupt naming `file`.
std::string manifest_text(const Manifest& manifest);
Manifest parse_manifest(std::string_view text, const std::string& file);

// "h.0.attn.weight[0:4096], h.0.attn.bias[0:64]"; at most `limit` segments, then "and 3 more".
std::string describe_segments(std::span<const StoreSegment> segments, std::size_t limit = 4);

}  // namespace terrace
