// Where the programs of several ranks meet.
#include <algorithm>
#include <string>

#include "src/base/fail.h"
#include "src/runtime/runtime.h"

namespace terrace {
namespace {

Part part_of(const NumelRange& range) {
  return {range.begin, range.numel()};
}

// Every process's share of a commit to the first one: 6 numbers of sums, then the epochs.
std::vector<CommitShare> gather_shares(Communicator& all, std::uint64_t step, const CommitShare& own) {
  const CollectiveLabel label{"the commit: all is written", kNoUnit, step};
  constexpr std::uint64_t kSums = 6;
  const std::uint64_t count = own.epochs.size();
  std::vector<std::uint64_t> counts(static_cast<std::size_t>(all.size()));
  all.all_gather(label, WireType::u64, equal_parts(all.size(), 1), std::as_bytes(std::span(&count, 1)),
                 std::as_writable_bytes(std::span(counts)));
  std::vector<std::uint64_t> sizes,
      numbers{own.own.low, own.own.high, own.added.low, own.added.high, own.removed.low, own.removed.high};
  for (const std::uint64_t epochs : counts) sizes.push_back(kSums + epochs);
  numbers.insert(numbers.end(), own.epochs.begin(), own.epochs.end());
  const std::vector<Part> parts = consecutive_parts(sizes);
  std::vector<std::uint64_t> everything(parts.back().offset + parts.back().numel);
  all.gather(label, WireType::u64, 0, parts, std::as_bytes(std::span(numbers)),
             std::as_writable_bytes(std::span(everything)));
  std::vector<CommitShare> shares;
  for (std::size_t rank = 1; all.rank() == 0 && rank < parts.size(); ++rank) {
    const auto begin = everything.begin() + static_cast<std::ptrdiff_t>(parts[rank].offset);
    CommitShare share{{begin[0], begin[1]}, {begin[2], begin[3]}, {begin[4], begin[5]}, {}};
    share.epochs.assign(begin + kSums, begin + static_cast<std::ptrdiff_t>(parts[rank].numel));
    shares.push_back(std::move(share));
  }
  return shares;
}

}  // namespace

// In adversarial mode one thread runs all lanes: what may wait for other ranks stands in one stream, in list
// order, or two ranks could wait for each other in two places.
std::uint32_t Runtime::stream_of(const Op& op) const {
  const bool meets = parts_.groups != nullptr && op.lane == Lane::commit;
  return static_cast<std::uint32_t>(meets ? Lane::collective : op.lane);
}

// Parameters within a shard group, or rounded sums within a replicate group; in place.
void Runtime::all_gather(const Op& op) {
  check(parts_.groups != nullptr, "{} without a communicator", name_of(op.kind));
  const RankTable& table = parts_.plan->ranks;
  const bool shards = op.group == RankGroup::shard;
  Communicator& group = shards ? *parts_.groups->shard : *parts_.groups->replicate;
  const DType dtype = shards ? parts_.model->param_dtype : parts_.model->grad_dtype;
  const UnitShape& unit = parts_.model->units[op.unit];
  std::vector<Part> parts;
  for (const int rank : group.world_ranks()) {
    const auto r = static_cast<std::uint32_t>(rank);
    parts.push_back(part_of(shards ? table.shard_range(op.unit, r) : table.own_range(op.unit, r)));
  }
  std::byte* base = current_->slots.data(op.accesses.at(0).slot);
  const Part mine = parts[static_cast<std::size_t>(group.rank())];
  const std::uint64_t element = dtype_bytes(dtype);
  group.all_gather({unit.name, op.unit, inputs_->step}, wire_type(dtype), parts,
                   {base + mine.offset * element, mine.numel * element},
                   {base, unit.padded_numel() * element});
}

// One round of a unit's contributions: each rank's to the owners of its parts, or to the holders of its
// shards in the same replica; or a replica's sums of a shard to the owners of its parts.
void Runtime::reduce_scatter(const Op& op) {
  check(parts_.groups != nullptr, "{} without a communicator", name_of(op.kind));
  const RankTable& table = parts_.plan->ranks;
  const std::uint32_t self = parts_.plan->rank;
  const bool shards = op.group == RankGroup::shard;
  const bool replicas = op.group == RankGroup::replicate;
  Communicator& group = shards     ? *parts_.groups->shard
                        : replicas ? *parts_.groups->replicate
                                   : *parts_.groups->world;
  const auto range_of = [&](std::uint32_t rank) {
    return shards ? table.shard_range(op.unit, rank) : table.own_range(op.unit, rank);
  };
  const DType dtype = parts_.model->grad_dtype;
  const std::uint64_t element = dtype_bytes(dtype);
  const UnitShape& unit = parts_.model->units[op.unit];
  const Summands summands(table.shape(), current_->program.contributions);
  const std::uint32_t present = summands.senders(op.group, self, op.micro_batch / table.ranks());
  const std::uint64_t own = range_of(self).numel();
  const std::uint64_t begin = replicas ? table.shard_range(op.unit, self).begin : 0;  // of what is sent
  std::vector<Part> sent, received;
  for (const int rank : group.world_ranks()) {
    const Part part = part_of(range_of(static_cast<std::uint32_t>(rank)));
    sent.push_back({part.offset - std::min(part.offset, begin), part.numel});
    const std::uint64_t place = received.size();
    received.push_back(place < present ? Part{place * own, own} : Part{});
  }
  std::optional<std::span<const std::byte>> gradient;
  std::span<std::byte> into;
  for (const Access& access : op.accesses) {
    std::byte* data = current_->slots.data(access.slot) + access.offset_bytes;
    if (access.role == Role::grads) gradient = std::span<const std::byte>(data, access.bytes);
    if (access.role == Role::received) into = {data, access.bytes};
  }
  check(into.size() == present * own * element, "{} bytes for {} contributions of {} elements", into.size(),
        present, own);
  group.all_to_all({unit.name, op.unit, inputs_->step}, wire_type(dtype), sent, gradient, received, into);
}

// The whole gradient's sum, and which tensors no rank's contributions have touched: one all-reduce.
ExactSum Runtime::join_ranks(const ExactSum& own) {
  const auto mine = own.numbers();
  std::vector<std::uint64_t> numbers(mine.begin(), mine.end());
  const bool asks = parts_.executor->may_leave_untouched();
  const bool contributed = parts_.plan->rank < current_->program.contributions;
  for (std::uint32_t u = 0; asks && u < parts_.model->units.size(); ++u) {
    for (std::uint32_t t = 0; t < parts_.model->units[u].tensors.size(); ++t)
      numbers.push_back(contributed && parts_.executor->touched(u, t) ? 1 : 0);
  }
  std::vector<std::uint64_t> all(numbers.size());
  parts_.groups->world->all_reduce({"the gradient's norm", kNoUnit, inputs_->step}, ReduceOp::sum,
                                   std::span<const std::uint64_t>(numbers), std::span<std::uint64_t>(all));
  for (std::size_t i = 0; i < touched_.size(); ++i) touched_[i] = !asks || all[mine.size() + i] != 0;
  std::array<std::uint64_t, ExactSum::kNumbers> sum{};
  std::copy_n(all.begin(), sum.size(), sum.begin());
  return ExactSum::of_numbers(sum);
}

// In the step whose update runs. A frozen tensor never is.
bool Runtime::touched(std::uint32_t unit, std::uint32_t tensor) const {
  if (parts_.model->units[unit].tensors[tensor].frozen) return false;
  if (parts_.groups == nullptr) return parts_.executor->touched(unit, tensor);
  return parts_.plan->updates == UpdateTime::backward || pending_->touched[first_tensor_[unit] + tensor] != 0;
}

// The store is one: it commits when every rank's writes are there, and nobody writes before it has.
void Runtime::commit() {
  const CommitInputs& what = inputs_->commit;
  if (parts_.groups == nullptr) return parts_.store->commit(what.step, what.run_state);
  Communicator& all = *parts_.groups->commit;
  if (!parts_.ranks_are_processes) {
    all.barrier({"the commit: all is written", kNoUnit, what.step});
    if (all.rank() == 0) parts_.store->commit(what.step, what.run_state);
    all.barrier({"the commit: it is done", kNoUnit, what.step});
    return;
  }
  const bool leads = all.rank() == 0;
  const std::vector<CommitShare> others =
      gather_shares(all, what.step, leads ? CommitShare{} : parts_.store->prepare(what.step));
  if (leads) parts_.store->commit(what.step, what.run_state, others);
  all.barrier({"the commit: it is done", kNoUnit, what.step});
  if (!leads) parts_.store->committed(what.step);
}

}  // namespace terrace
