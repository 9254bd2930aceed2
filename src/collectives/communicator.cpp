#include "src/collectives/communicator.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "src/base/fail.h"
#include "src/base/units.h"
#include "src/collectives/collective_call.h"

namespace terrace {
namespace {

constexpr std::uint64_t kAnyBytes = std::numeric_limits<std::uint64_t>::max();

template <typename... Args>
[[noreturn]] void refuse(const CollectiveCall& call, fmt::format_string<Args...> format, Args&&... args) {
  fail(ErrorCode::invalid_argument, "{}: {}", describe(call),
       fmt::format(format, std::forward<Args>(args)...));
}

bool overlap(const void* a, std::uint64_t a_bytes, const void* b, std::uint64_t b_bytes) {
  const auto x = reinterpret_cast<std::uintptr_t>(a), y = reinterpret_cast<std::uintptr_t>(b);
  return a_bytes > 0 && b_bytes > 0 && x < y + b_bytes && y < x + a_bytes;
}

// `mine` may be its own place in `out`, or apart from `out`.
void check_in_place(const CollectiveCall& call, const Part& place, std::span<const std::byte> mine,
                    std::span<std::byte> out) {
  if (mine.data() == out.data() + place.offset * wire_bytes(call.type)) return;
  if (overlap(mine.data(), mine.size(), out.data(), out.size())) {
    refuse(call, "this rank's part overlaps the output elsewhere than in its own place");
  }
}

}  // namespace

Communicator::Communicator(std::string name, std::vector<int> world_ranks, int rank)
    : name_(std::move(name)), world_ranks_(std::move(world_ranks)), rank_(rank) {}

void Communicator::run_and_count(CollectiveCall& call) {
  run(call);
  CommunicatorStats::Traffic& traffic = stats_.kinds[static_cast<std::size_t>(call.kind)];
  ++traffic.calls;
  traffic.sent_bytes += sent_bytes(call, rank_, size());
  traffic.received_bytes += received_bytes(call, rank_, size());
}

void Communicator::check_parts(const CollectiveCall& call, std::string_view what, std::span<const Part> parts,
                               std::uint64_t bytes, bool disjoint) const {
  const std::uint64_t numel = bytes / wire_bytes(call.type);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    if (part.offset > numel || part.numel > numel - part.offset) {
      refuse(call, "{} part {} is {} elements at {}; wanted it within the {} elements given", what, i,
             part.numel, part.offset, numel);
    }
    for (std::size_t j = 0; disjoint && j < i; ++j) {
      const Part& other = parts[j];
      if (part.numel > 0 && other.numel > 0 && part.offset < other.offset + other.numel &&
          other.offset < part.offset + part.numel) {
        refuse(call, "{} parts {} and {} overlap", what, j, i);
      }
    }
  }
}

void Communicator::check_count(const CollectiveCall& call, std::string_view what,
                               std::span<const Part> parts) const {
  if (parts.size() == world_ranks_.size()) return;
  fail(ErrorCode::invalid_argument, "{} in group {}: wanted {} {} parts, one a rank, got {}",
       collective_name(call.kind), name_, size(), what, parts.size());
}

void Communicator::check_mine(const CollectiveCall& call, std::uint64_t bytes) const {
  const std::uint64_t wanted = call.parts[static_cast<std::size_t>(rank_)].numel * wire_bytes(call.type);
  if (bytes != wanted) {
    refuse(call, "wanted {} bytes, this rank's part of the output, got {}", wanted, bytes);
  }
}

void Communicator::check_root(const CollectiveCall& call) const {
  if (call.root < 0 || call.root >= size()) refuse(call, "wanted a root of 0 to {}", size() - 1);
}

void Communicator::all_gather(const CollectiveLabel& label, WireType type, std::span<const Part> parts,
                              std::span<const std::byte> mine, std::span<std::byte> out) {
  CollectiveCall call{.kind = CollectiveKind::all_gather, .label = label, .type = type};
  check_count(call, "output", parts);
  call.parts = parts;
  call.send = mine.data();
  call.receive = out.data();
  check_mine(call, mine.size());
  check_parts(call, "output", parts, out.size(), true);
  check_in_place(call, parts[static_cast<std::size_t>(rank_)], mine, out);
  run_and_count(call);
}

std::vector<bool> Communicator::all_to_all(const CollectiveLabel& label, WireType type,
                                           std::span<const Part> send_parts,
                                           std::optional<std::span<const std::byte>> out,
                                           std::span<const Part> receive_parts, std::span<std::byte> in) {
  CollectiveCall call{.kind = CollectiveKind::all_to_all, .label = label, .type = type};
  check_count(call, "receive", receive_parts);
  call.receive_parts = receive_parts;
  call.present = out.has_value();
  if (out) {
    check_count(call, "send", send_parts);
    call.parts = send_parts;
    call.send = out->data();
    check_parts(call, "send", send_parts, out->size(), false);
    const auto me = static_cast<std::size_t>(rank_);
    if (send_parts[me].numel != receive_parts[me].numel) {
      refuse(call, "this rank sends {} elements to itself and expects {}", send_parts[me].numel,
             receive_parts[me].numel);
    }
    if (overlap(out->data(), out->size(), in.data(), in.size())) refuse(call, "out and in overlap");
  }
  call.receive = in.data();
  check_parts(call, "receive", receive_parts, in.size(), true);
  call.present_ranks.resize(world_ranks_.size());
  run_and_count(call);
  return std::move(call.present_ranks);
}

FoldResult Communicator::reduce_scatter(const CollectiveLabel& label, DType dtype,
                                        std::span<const Part> parts,
                                        std::optional<std::span<const std::byte>> gradient,
                                        std::span<float> accumulator, FoldRound round,
                                        std::span<double> block_sums) {
  CollectiveCall call{.kind = CollectiveKind::reduce_scatter, .label = label, .type = wire_type(dtype)};
  check_count(call, "gradient", parts);
  call.parts = parts;
  call.present = gradient.has_value();
  call.send = gradient ? gradient->data() : nullptr;
  call.accumulator = accumulator;
  call.round = round;
  call.block_sums = block_sums;
  check_parts(call, "gradient", parts, gradient ? gradient->size() : kAnyBytes, false);
  const std::uint64_t mine = parts[static_cast<std::size_t>(rank_)].numel;
  if (accumulator.size() != mine) {
    refuse(call, "wanted an accumulator of {} elements, got {}", mine, accumulator.size());
  }
  const std::uint64_t blocks = round.last ? div_up(mine, kBlockNumel) : 0;
  if (block_sums.size() != blocks) refuse(call, "wanted {} block sums, got {}", blocks, block_sums.size());
  if (gradient && overlap(gradient->data(), gradient->size(), accumulator.data(), accumulator.size_bytes())) {
    refuse(call, "gradient and accumulator overlap");
  }
  run_and_count(call);
  return call.folded;
}

void Communicator::reduce_numbers(CollectiveCall& call, const void* in, std::size_t in_numel, void* out,
                                  std::size_t out_numel) {
  call.kind = CollectiveKind::all_reduce;
  call.numel = in_numel;
  call.send = static_cast<const std::byte*>(in);
  call.receive = static_cast<std::byte*>(out);
  if (in_numel != out_numel) refuse(call, "wanted as many elements out as in, got {}", out_numel);
  if (overlap(in, in_numel * 8, out, out_numel * 8)) refuse(call, "in and out overlap");
  run_and_count(call);
}

void Communicator::all_reduce(const CollectiveLabel& label, ReduceOp op, std::span<const std::uint64_t> in,
                              std::span<std::uint64_t> out) {
  CollectiveCall call{.label = label, .type = WireType::u64, .op = op};
  reduce_numbers(call, in.data(), in.size(), out.data(), out.size());
}

void Communicator::all_reduce(const CollectiveLabel& label, ReduceOp op, std::span<const std::int64_t> in,
                              std::span<std::int64_t> out) {
  CollectiveCall call{.label = label, .type = WireType::i64, .op = op};
  reduce_numbers(call, in.data(), in.size(), out.data(), out.size());
}

void Communicator::all_reduce(const CollectiveLabel& label, std::span<const double> in,
                              std::span<double> out) {
  CollectiveCall call{.label = label, .type = WireType::f64};
  reduce_numbers(call, in.data(), in.size(), out.data(), out.size());
}

void Communicator::broadcast(const CollectiveLabel& label, WireType type, int root,
                             std::span<std::byte> data) {
  CollectiveCall call{.kind = CollectiveKind::broadcast, .label = label, .type = type, .root = root};
  call.numel = data.size() / wire_bytes(type);
  call.send = data.data();
  call.receive = data.data();
  check_root(call);
  if (data.size() % wire_bytes(type) != 0) {
    refuse(call, "wanted a multiple of {} bytes, got {}", wire_bytes(type), data.size());
  }
  run_and_count(call);
}

void Communicator::gather(const CollectiveLabel& label, WireType type, int root, std::span<const Part> parts,
                          std::span<const std::byte> mine, std::span<std::byte> out) {
  CollectiveCall call{.kind = CollectiveKind::gather, .label = label, .type = type, .root = root};
  check_count(call, "output", parts);
  call.parts = parts;
  call.send = mine.data();
  check_root(call);
  check_mine(call, mine.size());
  if (rank_ == root) {
    call.receive = out.data();
    check_parts(call, "output", parts, out.size(), true);
    check_in_place(call, parts[static_cast<std::size_t>(rank_)], mine, out);
  }
  run_and_count(call);
}

void Communicator::barrier(const CollectiveLabel& label) {
  CollectiveCall call{.kind = CollectiveKind::barrier, .label = label};
  run_and_count(call);
}

std::unique_ptr<Communicator> Communicator::split(std::span<const int> ranks, std::string_view name) {
  CollectiveCall call{.kind = CollectiveKind::split};
  call.ranks = ranks;
  call.name = name;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= size()) refuse(call, "wanted ranks of 0 to {}", size() - 1);
    if (std::ranges::count(ranks.first(i), ranks[i]) > 0) refuse(call, "rank {} is there twice", ranks[i]);
  }
  if (!ranks.empty() && std::ranges::count(ranks, rank_) == 0) {
    refuse(call, "rank {}, which calls, is not among them", rank_);
  }
  std::unique_ptr<Communicator> group = make_group(call);
  ++stats_.kinds[static_cast<std::size_t>(CollectiveKind::split)].calls;
  return group;
}

}  // namespace terrace
