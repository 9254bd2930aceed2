#include "src/collectives/collective_call.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

namespace terrace {
namespace {

std::size_t at(int rank) {
  return static_cast<std::size_t>(rank);
}

std::uint64_t total_numel(std::span<const Part> parts) {
  std::uint64_t sum = 0;
  for (const Part& part : parts) sum += part.numel;
  return sum;
}

std::uint64_t numel_of_others(std::span<const Part> parts, int rank) {
  return parts.empty() ? 0 : total_numel(parts) - parts[at(rank)].numel;
}

// What is said of the data: numel and type, and what else the kind has.
std::string describe_data(const CollectiveCall& call) {
  const std::string_view type = wire_name(call.type);
  switch (call.kind) {
    case CollectiveKind::all_gather:
      return fmt::format(", {} elements of {}", total_numel(call.parts), type);
    case CollectiveKind::all_to_all:
      return call.present
                 ? fmt::format(", sends {} elements of {}", total_numel(call.parts), type)
                 : fmt::format(", absent, receives {} elements of {}", total_numel(call.receive_parts), type);
    case CollectiveKind::reduce_scatter:
      return fmt::format(", {}{} elements of {}", call.present ? "" : "absent, ", total_numel(call.parts),
                         type);
    case CollectiveKind::all_reduce:
      return fmt::format(", {} of {} elements of {}", call.op == ReduceOp::sum ? "sum" : "max", call.numel,
                         type);
    case CollectiveKind::broadcast:
      return fmt::format(", {} elements of {} from root {}", call.numel, type, call.root);
    case CollectiveKind::gather:
      return fmt::format(", {} elements of {} to root {}", total_numel(call.parts), type, call.root);
    case CollectiveKind::barrier:
      return {};
    case CollectiveKind::split:
      return fmt::format(", group {} of ranks [{}]", call.name, fmt::join(call.ranks, " "));
  }
  return {};
}

// One direction of a pair: numel sent by `from` and expected by `to`.
std::string unmatched(const Caller& from, const Caller& to) {
  if (!from.call.present) return {};
  const std::uint64_t sent = from.call.parts[at(to.rank)].numel;
  const std::uint64_t expected = to.call.receive_parts[at(from.rank)].numel;
  if (sent == expected) return {};
  return fmt::format("rank {} sends {} elements to rank {}, which expects {}", from.world_rank, sent,
                     to.world_rank, expected);
}

std::string different_parts(std::span<const Part> a, std::span<const Part> b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    return fmt::format("part {}: {} elements at {}, and {} at {}", i, a[i].numel, a[i].offset, b[i].numel,
                       b[i].offset);
  }
  return {};
}

std::string different_rounds(FoldRound a, FoldRound b) {
  if (a.started != b.started) return "one rank starts its sum, the other goes on with it";
  return a.last != b.last ? "the last round on one rank only" : "";
}

}  // namespace

std::string describe(const CollectiveCall& call) {
  std::string text(collective_name(call.kind));
  if (!call.label.what.empty()) text += fmt::format(" of {}", call.label.what);
  text += call.label.unit == kNoUnit ? " (" : fmt::format(" (unit {}, ", call.label.unit);
  return text + fmt::format("step {}{})", call.label.step, describe_data(call));
}

std::string difference(const Caller& a, const Caller& b) {
  const CollectiveCall &x = a.call, &y = b.call;
  if (x.kind != y.kind) return "different kinds";
  if (x.label.unit != y.label.unit) return "different units";
  if (x.label.step != y.label.step) return "different steps";
  if (x.type != y.type) return "different element types";
  if (x.root != y.root) return "different roots";
  if (x.op != y.op) return "different operations";
  if (x.numel != y.numel) return "different numbers of elements";
  if (x.kind == CollectiveKind::all_to_all) {
    const std::string there = unmatched(a, b);
    return there.empty() ? unmatched(b, a) : there;
  }
  const std::string parts = different_parts(x.parts, y.parts);
  return parts.empty() ? different_rounds(x.round, y.round) : parts;
}

std::uint64_t sent_bytes(const CollectiveCall& call, int rank, int size) {
  const auto others = static_cast<std::uint64_t>(size - 1);
  const std::uint64_t bytes = wire_bytes(call.type);
  switch (call.kind) {
    case CollectiveKind::all_gather:
      return call.parts[at(rank)].numel * others * bytes;
    case CollectiveKind::all_to_all:
    case CollectiveKind::reduce_scatter:
      return call.present ? numel_of_others(call.parts, rank) * bytes : 0;
    case CollectiveKind::all_reduce:
      return call.numel * others * bytes;
    case CollectiveKind::broadcast:
      return rank == call.root ? call.numel * others * bytes : 0;
    case CollectiveKind::gather:
      return rank == call.root ? 0 : call.parts[at(rank)].numel * bytes;
    case CollectiveKind::barrier:
    case CollectiveKind::split:
      return 0;
  }
  return 0;
}

std::uint64_t received_bytes(const CollectiveCall& call, int rank, int size) {
  const auto others = static_cast<std::uint64_t>(size - 1);
  const std::uint64_t bytes = wire_bytes(call.type);
  switch (call.kind) {
    case CollectiveKind::all_gather:
      return numel_of_others(call.parts, rank) * bytes;
    case CollectiveKind::all_to_all: {
      std::uint64_t numel = 0;
      for (int r = 0; r < size; ++r) {
        if (r != rank && call.present_ranks[at(r)]) numel += call.receive_parts[at(r)].numel;
      }
      return numel * bytes;
    }
    case CollectiveKind::reduce_scatter:
      return static_cast<std::uint64_t>(call.folded.contributions - (call.present ? 1 : 0)) *
             call.parts[at(rank)].numel * bytes;
    case CollectiveKind::all_reduce:
      return call.numel * others * bytes;
    case CollectiveKind::broadcast:
      return rank == call.root ? 0 : call.numel * bytes;
    case CollectiveKind::gather:
      return rank == call.root ? numel_of_others(call.parts, rank) * bytes : 0;
    case CollectiveKind::barrier:
    case CollectiveKind::split:
      return 0;
  }
  return 0;
}

}  // namespace terrace
