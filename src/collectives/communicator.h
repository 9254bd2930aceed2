// A group of ranks that move data between them. Implementations: see local_communicator.h.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/collectives/collective.h"

namespace terrace {

struct CollectiveCall;

struct CommunicatorOptions {
  // A rank that has not come to a collective for so long, while another waits there, ends the world.
  std::chrono::milliseconds time_limit{30'000};
  // Emulated link: 1e9 bytes a second that one rank can send. A collective then takes each rank at least the
  // time of the bytes that it sends, sleeping. 0: as fast as it goes.
  double link_gbps = 0;
};

// One rank's handle of one group: the world, or a part of it made by split(). Every collective is entered by
// every rank of the group, in one order, and blocks the calling thread until this rank's part is done: what
// it receives is there, and what it sent may be overwritten. No call allocates more than a few bytes a rank.
//
// Thread contract: one thread of a rank at a time, abort() excepted. Different groups of one rank may be in
// use at once by different threads.
//
// Data: `Part`s cut flat arrays of elements, one part a rank of the group; parts to receive into must not
// overlap. Memory is the host's, of any alignment. Data that is received must not overlap data that is sent,
// on any rank, except where a call may be in place.
//
// Errors. Wrong arguments of this rank alone: invalid_argument, before others notice; nothing has happened.
// Everything else ends the whole world, all groups of all ranks, and every call from then on throws
// the same cause, with the call that it met. Ranks in messages are the world's, roots the group's.
//   invalid_argument: the ranks' calls do not match (kind, type, unit, step, parts, root, ...); both are
//     named, on every rank, as soon as two of them have come.
//   cancelled: a rank called abort(), or left (its handle was destroyed), or has not come within the time
//     limit; the message names that rank, the collective it was waited for in, and the cause.
// A rank whose own work fails calls abort(); the destructor does so when it runs because of an exception.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(world_ranks_.size()); }
  const std::string& name() const { return name_; }
  int world_rank() const { return world_ranks_[static_cast<std::size_t>(rank_)]; }
  std::span<const int> world_ranks() const { return world_ranks_; }  // of the ranks of this group
  const CommunicatorStats& stats() const { return stats_; }          // of this handle

  // out[parts[r]] = rank r's `mine`, for every r. `mine` has parts[rank()].numel elements; it may already be
  // in its place in `out`. Sends parts[rank()] to each other rank.
  void all_gather(const CollectiveLabel& label, WireType type, std::span<const Part> parts,
                  std::span<const std::byte> mine, std::span<std::byte> out);

  // in[receive_parts[r]] of rank q = out[send_parts[q]] of rank r, for every pair; numels of a pair are the
  // same on both sides. A rank without a contribution sends no `out` (send_parts is then ignored): absent,
  // which differs from parts of no elements. Returns who was present; what is kept for an absent rank is not
  // touched.
  std::vector<bool> all_to_all(const CollectiveLabel& label, WireType type, std::span<const Part> send_parts,
                               std::optional<std::span<const std::byte>> out,
                               std::span<const Part> receive_parts, std::span<std::byte> in);

  // The all-to-all of the ranks' gradients, cut by `parts`, and the fold of what this rank receives onto its
  // accumulator: s = fl32(s + g), in ascending rank, absent ranks skipped; where round.started is false the
  // first one present starts it. `accumulator` has parts[rank()].numel elements. When round.last, it is left
  // holding the sum rounded once to `dtype`, and block_sums (one a block of kBlockNumel elements of the part,
  // the tail shorter; else empty) get the sums of squares of kernels/cpu/gradient.h. Nothing is touched where
  // no rank has contributed in any round.
  FoldResult reduce_scatter(const CollectiveLabel& label, DType dtype, std::span<const Part> parts,
                            std::optional<std::span<const std::byte>> gradient, std::span<float> accumulator,
                            FoldRound round, std::span<double> block_sums = {});

  // out[i] = the sum (modulo 2^64) or the largest of the ranks' in[i]. For few numbers: each rank sends all
  // of `in` to each other.
  void all_reduce(const CollectiveLabel& label, ReduceOp op, std::span<const std::uint64_t> in,
                  std::span<std::uint64_t> out);
  void all_reduce(const CollectiveLabel& label, ReduceOp op, std::span<const std::int64_t> in,
                  std::span<std::int64_t> out);
  // out[i] = ((in[i] of rank 0 + rank 1's) + rank 2's) + ...: the same bits on every rank.
  void all_reduce(const CollectiveLabel& label, std::span<const double> in, std::span<double> out);

  // `data` of rank `root` to everybody. Its size in bytes is a multiple of the type's.
  void broadcast(const CollectiveLabel& label, WireType type, int root, std::span<std::byte> data);

  // all_gather to rank `root` alone; `out` is ignored on the others.
  void gather(const CollectiveLabel& label, WireType type, int root, std::span<const Part> parts,
              std::span<const std::byte> mine, std::span<std::byte> out);

  // Returns once every rank has entered.
  void barrier(const CollectiveLabel& label);

  // The group of the ranks listed (ranks of this group; the i-th becomes rank i). Every rank of this group
  // calls; members of one group pass one list and one name, and nobody is in two. An empty list: this rank
  // is in no group, and gets null.
  std::unique_ptr<Communicator> split(std::span<const int> ranks, std::string_view name);

  // Ends the world with this rank as the culprit: `cause` is what the others get to read. The first one
  // counts. Any thread; does not block for other ranks.
  virtual void abort(std::string_view cause) noexcept = 0;

 protected:
  Communicator(std::string name, std::vector<int> world_ranks, int rank);

 private:
  // Does what `call` says, its arguments being valid on this rank, and fills in its results.
  virtual void run(CollectiveCall& call) = 0;
  virtual std::unique_ptr<Communicator> make_group(CollectiveCall& call) = 0;

  void run_and_count(CollectiveCall& call);
  void check_count(const CollectiveCall& call, std::string_view what, std::span<const Part> parts) const;
  void check_parts(const CollectiveCall& call, std::string_view what, std::span<const Part> parts,
                   std::uint64_t bytes, bool disjoint) const;
  void check_mine(const CollectiveCall& call, std::uint64_t bytes) const;
  void check_root(const CollectiveCall& call) const;
  void reduce_numbers(CollectiveCall& call, const void* in, std::size_t in_numel, void* out,
                      std::size_t out_numel);

  std::string name_;
  std::vector<int> world_ranks_;
  int rank_;
  CommunicatorStats stats_;
};

}  // namespace terrace
