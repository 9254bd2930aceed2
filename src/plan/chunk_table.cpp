#include "src/plan/chunk_table.h"

#include <algorithm>

#include "src/base/fail.h"

namespace terrace {
namespace {

constexpr std::uint64_t kStaggerBytes = 4096 + 5 * 64;
constexpr std::uint64_t kExtentTrailerBytes = 4096;

// Whole blocks of a unit's flat parameter, in order.
struct Stretch {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  bool master_only = false;
};

// A block with an element of any other tensor is not master_only.
std::vector<Stretch> stretches_of(const UnitShape& unit) {
  std::vector<Stretch> stretches;
  std::uint64_t done = 0, start = 0;  // blocks before `done` are in the list
  const auto add = [&](std::uint64_t end, bool master_only) {
    if (end <= done) return;
    if (stretches.empty() || stretches.back().master_only != master_only)
      stretches.push_back({done, end, master_only});
    stretches.back().end = done = end;
  };
  for (const TensorShape& tensor : unit.tensors) {
    const std::uint64_t end = start + tensor.numel;
    if (!tensor.master_only && tensor.numel > 0) {
      add(start / kBlockNumel * kBlockNumel, true);
      add(round_up(end, kBlockNumel), false);
    }
    start = end;
  }
  add(unit.padded_numel(), true);
  return stretches;
}

void cut_stretch(std::uint32_t unit, const Stretch& stretch, std::uint64_t chunk_numel, std::uint32_t ranks,
                 std::vector<Chunk>& chunks) {
  const std::uint64_t numel = stretch.end - stretch.begin;
  const auto add = [&](std::uint64_t begin, std::uint64_t end) {
    chunks.push_back({unit, stretch.begin + begin, end - begin, {}, stretch.master_only});
  };
  if (ranks <= 1) {
    for (std::uint64_t begin = 0; begin < numel; begin += chunk_numel)
      add(begin, std::min(begin + chunk_numel, numel));
    return;
  }
  const std::uint64_t blocks = numel / kBlockNumel;
  const std::uint64_t count = std::min(blocks, round_up(div_up(numel, chunk_numel), ranks));
  for (std::uint64_t i = 0; i < count; ++i)
    add(i * blocks / count * kBlockNumel, (i + 1) * blocks / count * kBlockNumel);
}

}  // namespace

std::vector<Chunk> cut_chunks(const ModelShape& model, std::uint64_t chunk_numel, std::uint32_t ranks) {
  if (chunk_numel == 0 || chunk_numel % kBlockNumel != 0) {
    fail(ErrorCode::invalid_argument, "chunk_numel is {}; wanted a positive multiple of {}", chunk_numel,
         kBlockNumel);
  }
  std::vector<Chunk> chunks;
  for (std::uint32_t u = 0; u < model.units.size(); ++u) {
    const UnitShape& unit = model.units[u];
    const std::size_t first = chunks.size();
    for (const Stretch& stretch : stretches_of(unit)) cut_stretch(u, stretch, chunk_numel, ranks, chunks);
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

StateLayout state_layout(const Chunk& chunk) {
  static const std::vector<StateStream> master{adamw_streams().front()};
  return state_layout(chunk.master_only ? master : adamw_streams(), chunk.numel);
}

std::uint64_t stream_bytes(const Chunk& chunk) {
  return chunk.numel * sizeof(float) * (chunk.master_only ? 1 : adamw_streams().size());
}

std::uint64_t state_slot_bytes(const Chunk& chunk) {
  return state_layout(chunk).payload_bytes + kExtentTrailerBytes;
}

std::uint64_t state_slot_bytes(std::uint64_t numel) {
  return state_layout(adamw_streams(), numel).payload_bytes + kExtentTrailerBytes;
}

}  // namespace terrace
