// The words of collectives: kinds, element types, labels, parts of a flat array, counts of bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "src/base/dtype.h"

namespace terrace {

enum class CollectiveKind : std::uint8_t {
  all_gather,
  all_to_all,
  reduce_scatter,
  all_reduce,
  broadcast,
  gather,
  barrier,
  split
};
inline constexpr int kCollectiveKinds = 8;

std::string_view collective_name(CollectiveKind kind);

// What an element is on its way: the types of tensors, raw bytes, and the numbers of counts and losses.
enum class WireType : std::uint8_t { f32, bf16, f16, u8, i64, u64, f64 };

constexpr WireType wire_type(DType dtype) {
  return dtype == DType::f32 ? WireType::f32 : dtype == DType::bf16 ? WireType::bf16 : WireType::f16;
}
// The other way, for a type of tensors (our own bug otherwise: it gives f32).
constexpr DType tensor_type(WireType type) {
  return type == WireType::bf16 ? DType::bf16 : type == WireType::f16 ? DType::f16 : DType::f32;
}
std::size_t wire_bytes(WireType type);
std::string_view wire_name(WireType type);

enum class ReduceOp : std::uint8_t { sum, max };

inline constexpr std::uint32_t kNoUnit = ~std::uint32_t{0};

// Whose data it is. `what` is for people and read only during the call; unit and step are compared between
// the ranks.
struct CollectiveLabel {
  std::string_view what{};
  std::uint32_t unit = kNoUnit;
  std::uint64_t step = 0;
};

// One rank's elements of a flat array.
struct Part {
  std::uint64_t offset = 0;  // in elements
  std::uint64_t numel = 0;
  friend bool operator==(const Part&, const Part&) = default;
};

// Parts that lie end to end, in rank order.
std::vector<Part> consecutive_parts(std::span<const std::uint64_t> numels);
std::vector<Part> equal_parts(int ranks, std::uint64_t numel);  // numel each

// Where a reduce-scatter stands among the rounds of its step. The same on every rank.
struct FoldRound {
  bool started = false;  // the accumulator holds the sum of earlier rounds
  bool last = false;     // round the sum once to the gradient's type, and give the block sums
};

struct FoldResult {
  int contributions = 0;  // folded in this round, over all ranks of the group
  bool finite = true;     // of this rank's rounded sum; true when the round is not the last
};

// Bytes that one rank sent to and received from other ranks of its group; what stays on a rank is not
// counted. A broadcast's root sends its data to each of the others, whatever way a backend takes.
struct CommunicatorStats {
  struct Traffic {
    std::uint64_t calls = 0;
    std::uint64_t sent_bytes = 0;
    std::uint64_t received_bytes = 0;
  };
  std::array<Traffic, kCollectiveKinds> kinds{};

  const Traffic& of(CollectiveKind kind) const { return kinds[static_cast<std::size_t>(kind)]; }
  Traffic total() const;
};

}  // namespace terrace
