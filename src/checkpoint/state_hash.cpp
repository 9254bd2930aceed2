#include "src/checkpoint/state_hash.h"

#include <array>
#include <vector>

namespace terrace {

namespace {
constexpr std::array<float, kBlockNumel> kZeros{};
}

void StateHash::add(const ChunkState& state) {
  const Chunk& chunk = chunks_[state.chunk];
  const std::uint64_t unit = hash64(model_.units[chunk.unit].name);
  for (std::uint64_t at = 0; at < chunk.numel; at += kBlockNumel) {
    std::vector<std::uint64_t> identity{unit, (chunk.begin + at) / kBlockNumel};
    for (std::size_t s = 0; s < chunk.segments.size(); ++s) {
      const Segment& segment = chunk.segments[s];
      if (segment.offset < at + kBlockNumel && segment.offset + segment.numel() > at) {
        identity.push_back(segment.tensor);
        identity.push_back(state.segment_steps[s]);
      }
    }
    for (std::size_t stream = 0; stream < state.streams.size(); ++stream) {
      identity.push_back(stream);
      const std::uint64_t seed = hash64(identity.data(), identity.size() * sizeof(identity[0]));
      const float* values = state.streams[stream] != nullptr ? state.streams[stream] + at : kZeros.data();
      sum_ += hash128(values, kBlockNumel * sizeof(float), seed);
      identity.pop_back();
    }
  }
}

}  // namespace terrace
