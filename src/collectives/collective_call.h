// One rank's side of a collective, as an implementation of Communicator gets it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/collectives/collective.h"

namespace terrace {

// Lives on the caller's stack during the call. Which fields mean something depends on the kind.
struct CollectiveCall {
  CollectiveKind kind = CollectiveKind::barrier;
  CollectiveLabel label{};
  WireType type = WireType::u8;
  int root = 0;                           // broadcast, gather
  ReduceOp op = ReduceOp::sum;            // all_reduce
  std::uint64_t numel = 0;                // all_reduce, broadcast
  std::span<const Part> parts{};          // all_gather, gather, reduce_scatter; all_to_all: what is sent
  std::span<const Part> receive_parts{};  // all_to_all
  bool present = true;                    // all_to_all, reduce_scatter
  const std::byte* send = nullptr;        // base of `parts`; all_gather, gather: this rank's part itself
  std::byte* receive = nullptr;
  FoldRound round{};  // reduce_scatter
  std::span<float> accumulator{};
  std::span<double> block_sums{};
  std::span<const int> ranks{};  // split
  std::string_view name{};

  // Results.
  std::vector<bool> present_ranks{};  // all_to_all; sized by the caller
  FoldResult folded{};                // reduce_scatter
};

// A call and who made it.
struct Caller {
  const CollectiveCall& call;
  int rank;        // in the group
  int world_rank;  // in messages
};

// "all_gather of h.3 (unit 4, step 7, 1024 elements of bf16)".
std::string describe(const CollectiveCall& call);

// In what two ranks' calls at one place of a group's sequence do not fit each other, in words; empty when
// they do. Does not look at the lists of split.
std::string difference(const Caller& a, const Caller& b);

// Bytes that the call of `rank` sends to and (after it has ended) has received from other ranks.
std::uint64_t sent_bytes(const CollectiveCall& call, int rank, int size);
std::uint64_t received_bytes(const CollectiveCall& call, int rank, int size);

}  // namespace terrace
