// Flat parameters cut into chunks, and how a chunk's state lies in memory and in its extent.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/plan/model_shape.h"

namespace terrace {

// A part of one tensor inside a chunk.
struct Segment {
  std::uint32_t tensor = 0;  // index into the unit's tensors
  std::uint64_t begin = 0;   // elements [begin, end) of the tensor
  std::uint64_t end = 0;
  std::uint64_t offset = 0;  // element of the chunk at which it starts
  std::uint64_t numel() const { return end - begin; }
};

// Elements [begin, begin + numel) of a unit's flat parameter; both are multiples of a block.
struct Chunk {
  std::uint32_t unit = 0;
  std::uint64_t begin = 0;
  std::uint64_t numel = 0;  // padding included
  std::vector<Segment> segments;
  bool master_only = false;  // no gradient, no update, one stream
};

// Chunks of all units, in unit order; chunk_numel is a positive multiple of kBlockNumel (checked). For one
// rank every chunk but a unit's last has chunk_numel elements. For several, a unit's chunks are as many as a
// multiple of `ranks` (as far as there are blocks) and as equal as blocks allow, at most chunk_numel each: so
// each rank gets an equal part of every unit. A table may be used at any other number of ranks too
// (rank_table.h). Runs of blocks of master_only tensors alone are cut by themselves, in the same way, and so
// is what lies between them.
std::vector<Chunk> cut_chunks(const ModelShape& model, std::uint64_t chunk_numel, std::uint32_t ranks = 1);

// One array of a chunk's state.
struct StateStream {
  std::string name;
  DType dtype = DType::f32;
  std::uint64_t bytes_per_element = 4;
  std::uint64_t side_bytes_per_block = 0;
};

// master, exp_avg, exp_avg_sq, all fp32.
const std::vector<StateStream>& adamw_streams();

// Where each stream of a chunk of `numel` elements starts: one after another, staggered so that no two start
// at the same place of the first-level cache. payload_bytes is a multiple of 4096; the extent's trailer
// follows it.
struct StateLayout {
  std::vector<std::uint64_t> offset_bytes;
  std::uint64_t payload_bytes = 0;
};
StateLayout state_layout(const std::vector<StateStream>& streams, std::uint64_t numel);
// adamw_streams(), or of a master_only chunk the first of them.
StateLayout state_layout(const Chunk& chunk);

// Bytes of a chunk's streams alone, without what staggers them.
std::uint64_t stream_bytes(const Chunk& chunk);

// Bytes of a state slot: payload and trailer.
std::uint64_t state_slot_bytes(const Chunk& chunk);
std::uint64_t state_slot_bytes(std::uint64_t numel);  // of all of adamw_streams()

}  // namespace terrace
