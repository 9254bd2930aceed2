#include "src/plan/chunk_table.h"

#include <algorithm>

#include "src/base/fail.h"

namespace terrace {
namespace {

constexpr std::uint64_t kStaggerBytes = 4096 + 5 * 64;
constexpr std::uint64_t kExtentTrailerBytes = 4096;

}  // namespace

std::vector<Chunk> cut_chunks(const ModelShape& model, std::uint64_t chunk_numel, std::uint32_t ranks) {
  if (chunk_numel == 0 || chunk_numel % kBlockNumel != 0) {
    fail(ErrorCode::invalid_argument, "chunk_numel is {}; wanted a positive multiple of {}", chunk_numel,
         kBlockNumel);
  }
  std::vector<Chunk> chunks;
  for (std::uint32_t u = 0; u < model.units.size(); ++u) {
    const UnitShape& unit = model.units[u];
    const std::uint64_t padded = unit.padded_numel();
    const std::size_t first = chunks.size();
    if (ranks <= 1) {
      for (std::uint64_t begin = 0; begin < padded; begin += chunk_numel) {
        chunks.push_back({u, begin, std::min(chunk_numel, padded - begin), {}});
      }
    } else {
      const std::uint64_t blocks = padded / kBlockNumel;
      const std::uint64_t count = std::min(blocks, round_up(div_up(padded, chunk_numel), ranks));
      for (std::uint64_t i = 0; i < count; ++i) {
        const std::uint64_t begin = i * blocks / count * kBlockNumel;
        chunks.push_back({u, begin, (i + 1) * blocks / count * kBlockNumel - begin, {}});
      }
    }
    std::uint64_t start = 0;  // of the tensor in the flat parameter
    for (std::uint32_t t = 0; t < unit.tensors.size(); ++t) {
      const std::uint64_t end = start + unit.tensors[t].numel;
      for (std::size_t c = first; c < chunks.size(); ++c) {
        Chunk& chunk = chunks[c];
        const std::uint64_t from = std::max(start, chunk.begin);
        const std::uint64_t to = std::min(end, chunk.begin + chunk.numel);
        if (from < to) chunk.segments.push_back({t, from - start, to - start, from - chunk.begin});
      }
      start = end;
    }
  }
  return chunks;
}

const std::vector<StateStream>& adamw_streams() {
  static const std::vector<StateStream> streams{
      {"master", DType::f32, 4, 0}, {"exp_avg", DType::f32, 4, 0}, {"exp_avg_sq", DType::f32, 4, 0}};
  return streams;
}

StateLayout state_layout(const std::vector<StateStream>& streams, std::uint64_t numel) {
  StateLayout layout;
  std::uint64_t at = 0;
  for (const StateStream& stream : streams) {
    at += kStaggerBytes;
    layout.offset_bytes.push_back(at);
    at += numel * stream.bytes_per_element + numel / kBlockNumel * stream.side_bytes_per_block;
    at = round_up(at, 64);
  }
  layout.payload_bytes = round_up(at, 4096);
  return layout;
}

std::uint64_t state_slot_bytes(std::uint64_t numel) {
  return state_layout(adamw_streams(), numel).payload_bytes + kExtentTrailerBytes;
}

}  // namespace terrace
