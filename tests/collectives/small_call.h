// One small collective of any kind, every argument of which can be set: for tests of what goes wrong.
#pragma once

#include "src/collectives/communicator.h"

namespace terrace {

struct SmallCall {
  CollectiveKind kind = CollectiveKind::barrier;
  std::uint32_t unit = 4;
  std::uint64_t step = 7;
  WireType type = WireType::f32;  // not all_reduce; reduce_scatter: f32, bf16 or f16
  std::uint64_t numel = 5;        // of each part
  std::uint64_t gap = 0;          // between the parts
  int root = 0;
  ReduceOp op = ReduceOp::sum;
  bool started = false;
  bool last = false;
};

inline constexpr CollectiveKind kCallKinds[] = {CollectiveKind::all_gather,     CollectiveKind::all_to_all,
                                                CollectiveKind::reduce_scatter, CollectiveKind::all_reduce,
                                                CollectiveKind::broadcast,      CollectiveKind::gather,
                                                CollectiveKind::barrier};

void make_call(Communicator& group, const SmallCall& call);

}  // namespace terrace
