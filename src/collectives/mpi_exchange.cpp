#include "src/collectives/mpi_exchange.h"

#include <algorithm>
#include <cstring>

#include "src/base/fail.h"
#include "src/base/units.h"
#include "src/collectives/mpi_communicator.h"
#include "src/collectives/mpi_fold_tile.h"
#include "src/collectives/ordered_fold.h"

namespace terrace {
namespace {

std::size_t at(int rank) {
  return static_cast<std::size_t>(rank);
}

void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

double sum(double a, double b) {
  return a + b;
}
std::uint64_t sum(std::uint64_t a, std::uint64_t b) {
  return a + b;
}
std::int64_t sum(std::int64_t a, std::int64_t b) {  // modulo 2^64, where it would overflow
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

template <typename T>
void reduce_values(ReduceOp op, std::span<const std::byte* const> in, std::byte* out, std::uint64_t numel) {
  T* const result = reinterpret_cast<T*>(out);
  for (std::size_t r = 0; r < in.size(); ++r) {
    const T* const values = reinterpret_cast<const T*>(in[r]);
    for (std::uint64_t i = 0; i < numel; ++i) {
      result[i] = r == 0                ? values[i]
                  : op == ReduceOp::max ? std::max(result[i], values[i])
                                        : sum(result[i], values[i]);
    }
  }
}

// Elements that `rank` folds.
std::uint64_t numel_of(const CollectiveCall& call, int rank) {
  return call.kind == CollectiveKind::reduce_scatter ? call.parts[at(rank)].numel : call.numel;
}

// What this rank sends to `rank` to be folded.
const std::byte* send_base(const CollectiveCall& call, int rank) {
  if (call.kind != CollectiveKind::reduce_scatter) return call.send;
  return call.send + call.parts[at(rank)].offset * wire_bytes(call.type);
}

}  // namespace

MpiExchange::MpiExchange(MpiWorld& world, const MpiGroup& group, int rank)
    : world_(world),
      group_(group),
      rank_(rank),
      tag_(world.engine().tag(world.number(), group.number)),
      tile_bytes_(mpi_fold_tile_bytes(static_cast<int>(group.world_ranks.size()))) {}

void MpiExchange::prepare(const CollectiveCall& call) {
  if (call.kind != CollectiveKind::reduce_scatter && call.kind != CollectiveKind::all_reduce) return;
  const std::uint64_t whole =
      2 * static_cast<std::uint64_t>(size() - 1) * numel_of(call, rank_) * wire_bytes(call.type);
  const std::uint64_t wanted = std::min(whole, mpi_fold_buffer_bytes(size()));
  if (wanted <= buffer_bytes_) return;
  // A small one for counts; the whole one as soon as it is not small, so that it is allocated twice at most.
  const std::uint64_t bytes = wanted <= kFoldTileUnit ? kFoldTileUnit : mpi_fold_buffer_bytes(size());
  buffer_.reset();
  buffer_bytes_ = 0;
  buffer_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
  buffer_bytes_ = bytes;
}

void MpiExchange::run(CollectiveCall& call, const std::vector<bool>& present) {
  switch (call.kind) {
    case CollectiveKind::all_gather:
    case CollectiveKind::gather:
      return gather_parts(call);
    case CollectiveKind::all_to_all:
      return exchange(call, present);
    case CollectiveKind::reduce_scatter:
      return fold(call, present);
    case CollectiveKind::all_reduce:
      return reduce(call);
    case CollectiveKind::broadcast:
      return broadcast(call);
    case CollectiveKind::barrier:
    case CollectiveKind::split:
      return;
  }
}

// A transfer that stands can be neither taken back nor left alone: MPI holds the caller's memory.
void MpiExchange::wait(MpiBatch& batch, const CollectiveCall& call) {
  if (world_.engine().wait(batch, world_.patience())) return;
  abort_mpi_job(
      fmt::format("no transfer has moved for {:.2f} s in {} of group {}: another process has stopped",
                  std::chrono::duration<double>(world_.patience()).count(), describe(call), group_.name));
}

void MpiExchange::gather_parts(const CollectiveCall& call) {
  const std::uint64_t bytes = wire_bytes(call.type);
  const bool to_all = call.kind == CollectiveKind::all_gather, receives = to_all || rank_ == call.root;
  const Part& mine = call.parts[at(rank_)];
  MpiBatch batch;
  for (int i = 1; i < size(); ++i) {
    const int r = (rank_ + i) % size();
    const Part& part = call.parts[at(r)];
    if (receives) batch.receive(process(r), tag_, call.receive + part.offset * bytes, part.numel * bytes);
    if (to_all || r == call.root) batch.send(process(r), tag_, call.send, mine.numel * bytes);
  }
  world_.engine().start(batch);
  if (receives) copy(call.receive + mine.offset * bytes, call.send, mine.numel * bytes);
  wait(batch, call);
}

void MpiExchange::exchange(CollectiveCall& call, const std::vector<bool>& present) {
  const std::uint64_t bytes = wire_bytes(call.type);
  call.present_ranks = present;
  MpiBatch batch;
  for (int i = 1; i < size(); ++i) {
    const int r = (rank_ + i) % size();
    const Part& to = call.receive_parts[at(r)];
    if (present[at(r)]) batch.receive(process(r), tag_, call.receive + to.offset * bytes, to.numel * bytes);
    if (!call.present) continue;
    const Part& from = call.parts[at(r)];
    batch.send(process(r), tag_, call.send + from.offset * bytes, from.numel * bytes);
  }
  world_.engine().start(batch);
  if (call.present) {
    const Part &from = call.parts[at(rank_)], &to = call.receive_parts[at(rank_)];
    copy(call.receive + to.offset * bytes, call.send + from.offset * bytes, to.numel * bytes);
  }
  wait(batch, call);
}

void MpiExchange::broadcast(const CollectiveCall& call) {
  const std::uint64_t bytes = call.numel * wire_bytes(call.type);
  MpiBatch batch;
  if (rank_ != call.root) {
    batch.receive(process(call.root), tag_, call.receive, bytes);
  } else {
    for (int i = 1; i < size(); ++i) batch.send(process((rank_ + i) % size()), tag_, call.send, bytes);
  }
  world_.engine().start(batch);
  wait(batch, call);
}

// The tile of every rank's part that begins at byte `begin`: ours from all others, theirs to them.
void MpiExchange::start_tile(const CollectiveCall& call, const std::vector<bool>& present,
                             std::uint64_t begin, std::byte* buffer, MpiBatch& batch) {
  const std::uint64_t bytes = wire_bytes(call.type);
  const auto tile = [&](int r) {
    const std::uint64_t part = numel_of(call, r) * bytes;
    return begin < part ? std::min(tile_bytes_, part - begin) : 0;
  };
  for (int i = 1; i < size(); ++i) {
    const int r = (rank_ + i) % size();
    const std::uint64_t slot = tile(rank_) * static_cast<std::uint64_t>(r < rank_ ? r : r - 1);
    if (present[at(r)]) batch.receive(process(r), tag_, buffer + slot, tile(rank_));
    if (call.present && tile(r) > 0) batch.send(process(r), tag_, send_base(call, r) + begin, tile(r));
  }
  world_.engine().start(batch);
}

// Calls consume(first element, numel, contributions in ascending rank) for each tile of this rank's part; the
// next tile is on its way meanwhile.
template <typename Consume>
void MpiExchange::receive_tiles(const CollectiveCall& call, const std::vector<bool>& present,
                                const Consume& consume) {
  const std::uint64_t bytes = wire_bytes(call.type), mine = numel_of(call, rank_) * bytes;
  std::uint64_t longest = 0;
  for (int r = 0; r < size(); ++r) longest = std::max(longest, numel_of(call, r) * bytes);
  MpiBatch batches[2];
  std::byte* const halves[2] = {buffer_.get(), buffer_.get() + buffer_bytes_ / 2};
  std::vector<const std::byte*> contributions;
  start_tile(call, present, 0, halves[0], batches[0]);
  for (std::uint64_t begin = 0, i = 0; begin < longest; begin += tile_bytes_, ++i) {
    if (begin + tile_bytes_ < longest) {
      start_tile(call, present, begin + tile_bytes_, halves[(i + 1) % 2], batches[(i + 1) % 2]);
    }
    wait(batches[i % 2], call);
    if (begin >= mine) continue;
    const std::uint64_t tile = std::min(tile_bytes_, mine - begin);
    contributions.clear();
    for (int r = 0; r < size(); ++r) {
      if (!present[at(r)]) continue;
      contributions.push_back(r == rank_
                                  ? send_base(call, r) + begin
                                  : halves[i % 2] + tile * static_cast<std::uint64_t>(r < rank_ ? r : r - 1));
    }
    consume(begin / bytes, tile / bytes, std::span<const std::byte* const>(contributions));
  }
}

void MpiExchange::fold(CollectiveCall& call, const std::vector<bool>& present) {
  const DType dtype = tensor_type(call.type);
  call.folded = {.contributions = static_cast<int>(std::ranges::count(present, true)), .finite = true};
  receive_tiles(
      call, present,
      [&](std::uint64_t begin, std::uint64_t numel, std::span<const std::byte* const> contributions) {
        const auto block_sums = call.round.last
                                    ? call.block_sums.subspan(begin / kBlockNumel, div_up(numel, kBlockNumel))
                                    : std::span<double>();
        const FoldResult tile = ordered_fold(contributions, dtype, call.accumulator.subspan(begin, numel),
                                             call.round, block_sums);
        call.folded.finite = call.folded.finite && tile.finite;
      });
}

void MpiExchange::reduce(const CollectiveCall& call) {
  receive_tiles(call, std::vector<bool>(at(size()), true),
                [&](std::uint64_t begin, std::uint64_t numel, std::span<const std::byte* const> in) {
                  std::byte* const out = call.receive + begin * wire_bytes(call.type);
                  switch (call.type) {
                    case WireType::u64:
                      return reduce_values<std::uint64_t>(call.op, in, out, numel);
                    case WireType::i64:
                      return reduce_values<std::int64_t>(call.op, in, out, numel);
                    default:
                      return reduce_values<double>(call.op, in, out, numel);
                  }
                });
}

}  // namespace terrace
