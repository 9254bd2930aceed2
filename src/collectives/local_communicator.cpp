#include "src/collectives/local_communicator.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "src/base/fail.h"
#include "src/collectives/collective_call.h"
#include "src/collectives/local_group.h"
#include "src/collectives/ordered_fold.h"

namespace terrace {
namespace {

std::size_t at(int rank) {
  return static_cast<std::size_t>(rank);
}

void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalGroup> group, int rank)
      : Communicator(group->name(), group->world_ranks(), rank),
        group_(std::move(group)),
        exceptions_(std::uncaught_exceptions()) {}

  ~LocalCommunicator() override {
    if (std::uncaught_exceptions() > exceptions_) {
      group_->abort(rank(), "an exception that took its communicator away");
    }
    group_->quit(rank());
  }

  void abort(std::string_view cause) noexcept override { group_->abort(rank(), cause); }

 private:
  void run(CollectiveCall& call) override {
    group_->enter(rank(), call);
    if (call.kind == CollectiveKind::barrier) return;
    try {
      receive(call);
    } catch (
        const std::exception& error) {  // memory or threads ran out: the others' part is not touched by it
      group_->abort(rank(), error.what());
      group_->leave(rank(), 0);
      throw;
    }
    group_->leave(rank(), sent_bytes(call, rank(), size()));
  }

  std::unique_ptr<Communicator> make_group(CollectiveCall& call) override {
    group_->enter(rank(), call);
    std::shared_ptr<LocalGroup> made = group_->take_made(rank());
    group_->leave(rank(), 0);
    if (!made) return nullptr;
    const auto place = std::ranges::find(call.ranks, rank()) - call.ranks.begin();
    return std::make_unique<LocalCommunicator>(std::move(made), static_cast<int>(place));
  }

  // Runs while every rank of the group is between enter and leave.
  void receive(CollectiveCall& call) const {
    switch (call.kind) {
      case CollectiveKind::all_gather:
        return gather_parts(call);
      case CollectiveKind::gather:
        return rank() == call.root ? gather_parts(call) : void();
      case CollectiveKind::all_to_all:
        return exchange(call);
      case CollectiveKind::reduce_scatter:
        return fold(call);
      case CollectiveKind::all_reduce:
        return reduce(call);
      case CollectiveKind::broadcast:
        return copy(call.receive, group_->call_of(call.root).send, call.numel * wire_bytes(call.type));
      case CollectiveKind::barrier:
      case CollectiveKind::split:
        return;
    }
  }

  // The ranks in turn, starting with the one after this, so that not all read one rank's memory at once.
  template <typename Body>
  void for_each_rank(const Body& body) const {
    for (int i = 1; i <= size(); ++i) body((rank() + i) % size());
  }

  void gather_parts(const CollectiveCall& call) const {
    const std::uint64_t bytes = wire_bytes(call.type);
    for_each_rank([&](int r) {
      const Part& part = call.parts[at(r)];
      copy(call.receive + part.offset * bytes, group_->call_of(r).send, part.numel * bytes);
    });
  }

  void exchange(CollectiveCall& call) const {
    const std::uint64_t bytes = wire_bytes(call.type);
    for_each_rank([&](int r) {
      const CollectiveCall& sender = group_->call_of(r);
      call.present_ranks[at(r)] = sender.present;
      if (!sender.present) return;
      const Part &from = sender.parts[at(rank())], &to = call.receive_parts[at(r)];
      copy(call.receive + to.offset * bytes, sender.send + from.offset * bytes, to.numel * bytes);
    });
  }

  void fold(CollectiveCall& call) const {
    const DType dtype = tensor_type(call.type);
    const std::uint64_t offset = call.parts[at(rank())].offset;
    std::vector<const std::byte*> contributions;
    for (int r = 0; r < size(); ++r) {
      const CollectiveCall& sender = group_->call_of(r);
      if (sender.present) contributions.push_back(sender.send + offset * dtype_bytes(dtype));
    }
    call.folded = ordered_fold(contributions, dtype, call.accumulator, call.round, call.block_sums);
  }

  void reduce(const CollectiveCall& call) const {
    switch (call.type) {
      case WireType::u64:
        return reduce_typed<std::uint64_t>(call);
      case WireType::i64:
        return reduce_typed<std::int64_t>(call);
      default:
        return reduce_typed<double>(call);
    }
  }

  template <typename T>
  void reduce_typed(const CollectiveCall& call) const {
    T* const out = reinterpret_cast<T*>(call.receive);
    for (int r = 0; r < size(); ++r) {
      const T* const in = reinterpret_cast<const T*>(group_->call_of(r).send);
      for (std::uint64_t i = 0; i < call.numel; ++i) {
        out[i] = r == 0 ? in[i] : call.op == ReduceOp::max ? std::max(out[i], in[i]) : sum(out[i], in[i]);
      }
    }
  }

  static double sum(double a, double b) { return a + b; }
  static std::uint64_t sum(std::uint64_t a, std::uint64_t b) { return a + b; }
  static std::int64_t sum(std::int64_t a, std::int64_t b) {  // modulo 2^64, where it would overflow
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  }

  const std::shared_ptr<LocalGroup> group_;
  const int exceptions_;  // in flight when this handle was made
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_local_world(int size, const CommunicatorOptions& options) {
  if (size < 1) fail(ErrorCode::invalid_argument, "world: wanted 1 rank or more, got {}", size);
  if (options.time_limit.count() <= 0 || options.time_limit > std::chrono::hours(24)) {
    fail(ErrorCode::invalid_argument, "world: wanted a time limit of 1 ms to 1 day, got {} ms",
         options.time_limit.count());
  }
  if (!(options.link_gbps >= 0)) {
    fail(ErrorCode::invalid_argument, "world: wanted a link of 0 GB/s or more, got {}", options.link_gbps);
  }
  const auto world = std::make_shared<LocalWorld>(size, options);
  std::vector<int> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(r);
  const auto group = std::make_shared<LocalGroup>(world, std::move(ranks), "world");
  world->add(world->lock(), group);
  std::vector<std::unique_ptr<Communicator>> handles;
  for (int r = 0; r < size; ++r) handles.push_back(std::make_unique<LocalCommunicator>(group, r));
  return handles;
}

}  // namespace terrace
