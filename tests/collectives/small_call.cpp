#include "tests/collectives/small_call.h"

#include "src/base/units.h"
#include "tests/collectives/values.h"

namespace terrace {

void make_call(Communicator& group, const SmallCall& call) {
  const CollectiveLabel label{.what = "h.3", .unit = call.unit, .step = call.step};
  const std::uint64_t bytes = wire_bytes(call.type), ranks = at(group.size());
  std::vector<Part> parts;
  for (std::uint64_t r = 0; r < ranks; ++r) parts.push_back({r * (call.numel + call.gap), call.numel});
  const std::vector<std::byte> mine(call.numel * bytes);
  std::vector<std::byte> whole(ranks * (call.numel + call.gap) * bytes), other(whole.size());
  switch (call.kind) {
    case CollectiveKind::all_gather:
      return group.all_gather(label, call.type, parts, mine, whole);
    case CollectiveKind::all_to_all:
      group.all_to_all(label, call.type, parts, whole, parts, other);
      return;
    case CollectiveKind::reduce_scatter: {
      std::vector<float> sum(call.numel);
      std::vector<double> block_sums(call.last ? div_up(call.numel, kBlockNumel) : 0);
      const DType dtype = tensor_type(call.type);
      group.reduce_scatter(label, dtype, parts, whole, sum, {call.started, call.last}, block_sums);
      return;
    }
    case CollectiveKind::all_reduce: {
      const std::vector<std::uint64_t> in(call.numel);
      std::vector<std::uint64_t> out(call.numel);
      return group.all_reduce(label, call.op, std::span<const std::uint64_t>(in), out);
    }
    case CollectiveKind::broadcast:
      return group.broadcast(label, call.type, call.root, whole);
    case CollectiveKind::gather:
      return group.gather(label, call.type, call.root, parts, mine, whole);
    case CollectiveKind::barrier:
    case CollectiveKind::split:
      return group.barrier(label);
  }
}

}  // namespace terrace
