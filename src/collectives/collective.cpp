#include "src/collectives/collective.h"

namespace terrace {

std::string_view collective_name(CollectiveKind kind) {
  constexpr std::array<std::string_view, kCollectiveKinds> kNames = {
      "all_gather", "all_to_all", "reduce_scatter", "all_reduce", "broadcast", "gather", "barrier", "split"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::size_t wire_bytes(WireType type) {
  constexpr std::array<std::size_t, 7> kBytes = {4, 2, 2, 1, 8, 8, 8};
  return kBytes[static_cast<std::size_t>(type)];
}

std::string_view wire_name(WireType type) {
  constexpr std::array<std::string_view, 7> kNames = {"fp32", "bf16", "fp16", "u8", "i64", "u64", "fp64"};
  return kNames[static_cast<std::size_t>(type)];
}

std::vector<Part> consecutive_parts(std::span<const std::uint64_t> numels) {
  std::vector<Part> parts;
  std::uint64_t offset = 0;
  for (const std::uint64_t numel : numels) {
    parts.push_back({offset, numel});
    offset += numel;
  }
  return parts;
}

std::vector<Part> equal_parts(int ranks, std::uint64_t numel) {
  return consecutive_parts(std::vector<std::uint64_t>(static_cast<std::size_t>(ranks), numel));
}

CommunicatorStats::Traffic CommunicatorStats::total() const {
  Traffic sum;
  for (const Traffic& kind : kinds) {
    sum.calls += kind.calls;
    sum.sent_bytes += kind.sent_bytes;
    sum.received_bytes += kind.received_bytes;
  }
  return sum;
}

}  // namespace terrace
