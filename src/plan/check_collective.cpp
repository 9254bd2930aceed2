// What collectives need of this rank, and what they leave: what the same program sends on the other ranks.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <numeric>

#include "src/plan/check_data.h"

namespace terrace::check_rules {

// What the sums of a unit are once they have come from all replicas. A single summand is the sum.
Value DataFlow::spread_sum(std::uint32_t unit) const {
  if (view_.rounds_sums()) return {ValueKind::rounded_sum, unit, view_.summands()};
  return summand(unit, 0);
}

// Parameters, each rank its shard of the unit, or rounded sums, each its own part of the shard.
void DataFlow::all_gather(const Op& op) {
  const bool params = op.group == RankGroup::shard;
  const Elements whole =
      params ? Elements{0, input_.model.units[op.unit].padded_numel()} : view_.shard(op.unit);
  const Elements mine = params ? view_.shard(op.unit) : view_.own(op.unit);
  const std::uint64_t element = params ? param_bytes_ : grad_bytes_;
  const Value value = params ? Value{ValueKind::params, op.unit, step_} : spread_sum(op.unit);
  const Item item = params ? Item::piece : Item::sum_piece;

  const Access* sent = nullptr;
  std::vector<const Access*> received;
  for (const Access& access : op.accesses) {
    const Slot& slot = program_.slots[access.slot];
    const bool reads = access.role == Role::mine && access.mode == AccessMode::read && sent == nullptr;
    const bool writes = access.role == Role::others && access.mode == AccessMode::write;
    if (slot.item != item || slot.unit != op.unit || access.slot != op.accesses[0].slot ||
        (!reads && !writes)) {
      return report(Rule::operand, access.slot,
                    fmt::format("{}: {} is not its range, or others', of one {} of the unit",
                                describe_op(program_, op_), describe_slot(program_, access.slot),
                                params ? "piece" : "sum_piece"));
    }
    if (reads) sent = &access;
    if (writes) received.push_back(&access);
  }
  const auto range = [&](const Access& access, std::uint64_t begin, std::uint64_t end) {
    return access.offset_bytes == begin * element && access.bytes == (end - begin) * element;
  };
  const auto refuse = [&](std::string_view what, std::uint64_t begin, std::uint64_t end) {
    report(Rule::operand, sent == nullptr ? kNone : sent->slot,
           fmt::format("{} wanted elements [{}, {}) as {}", describe_op(program_, op_), begin, end, what));
  };
  if (sent == nullptr) return lacks("its range");
  if (mine.empty() ? sent->bytes != 0 : !range(*sent, mine.begin, mine.end)) {
    return refuse("its range", mine.begin, mine.end);
  }
  for (const CheckChunk& chunk : input_.chunks) {
    const std::uint64_t end = chunk.first_numel + chunk.numel;
    if (chunk.unit != op.unit || chunk.first_numel < mine.begin || end > mine.end) continue;
    if (chunk.frozen && !params) continue;  // no sum, but a place in the range
    Access part = *sent;
    part.offset_bytes = chunk.first_numel * element;
    part.bytes = chunk.numel * element;
    need(part, "its range", value, chunk.first_numel * element, part.bytes);
  }

  // The others' ranges and this rank's lie end to end.
  std::sort(received.begin(), received.end(),
            [](const Access* a, const Access* b) { return a->offset_bytes < b->offset_bytes; });
  std::uint64_t next = whole.begin * element;
  const auto skip_mine = [&] {
    if (!mine.empty() && next == mine.begin * element) next = mine.end * element;
  };
  skip_mine();
  for (const Access* access : received) {
    if (access->bytes == 0) continue;
    if (access->offset_bytes != next) break;
    next += access->bytes;
    skip_mine();
  }
  const std::uint64_t total =
      std::accumulate(received.begin(), received.end(), mine.numel() * element,
                      [](std::uint64_t sum, const Access* access) { return sum + access->bytes; });
  if (next != whole.end * element || total != whole.numel() * element) {
    return refuse("its range and others' together, none twice", whole.begin, whole.end);
  }
  for (const Access* access : received)
    put(*access, "others' ranges", value, access->offset_bytes, access->bytes);
}

// One round: what this rank has to send to the ranks of the group, and their parts of the same to this rank.
// world: contributions or, once a step, the sums of each rank's own. Within a replica: contributions, to
// shards. Between replicas: the sums of each replica.
void DataFlow::reduce_scatter(const Op& op) {
  const CheckRanks& ranks = input_.ranks;
  const std::uint32_t first = op.micro_batch;
  const bool between = op.group == RankGroup::replicate, within = op.group == RankGroup::shard;
  const bool once = view_.order() == Reduction::last;
  const Elements all =
      between ? view_.shard(op.unit) : Elements{0, input_.model.units[op.unit].padded_numel()};
  const Elements mine = within ? view_.shard(op.unit) : view_.own(op.unit);
  const Item item = between ? Item::group_sum : Item::contribution;
  const Access* sent = nullptr;
  const Access* received = nullptr;
  for (const Access& access : op.accesses) {
    const Slot& slot = program_.slots[access.slot];
    const bool reads =
        access.role == Role::grads && access.mode == AccessMode::read && sent == nullptr && slot.item == item;
    const bool writes = access.role == Role::received && access.mode == AccessMode::write &&
                        received == nullptr && slot.item == Item::received;
    if (reads) sent = &access;
    if (writes) received = &access;
    if (reads || writes) continue;
    return report(Rule::operand, access.slot,
                  fmt::format("{}: {} is not its contribution, or what it receives",
                              describe_op(program_, op_), describe_slot(program_, access.slot)));
  }
  const bool contributes =
      once || (between ? view_.in_replica(first) > 0 : view_.contributes(first + ranks.rank));
  if (contributes != (sent != nullptr) || mine.empty() != (received == nullptr)) {
    return report(Rule::operand, kNone,
                  fmt::format("{}: rank {} has {} contribution in this round and {} part of the unit, wanted "
                              "as many accesses",
                              describe_op(program_, op_), ranks.rank, contributes ? "one" : "no",
                              mine.empty() ? "no" : "one"));
  }
  // What the i-th rank of the group sends.
  const auto value = [&](std::uint32_t i) -> Value {
    if (once) return summand(op.unit, i);
    if (between) return summand(op.unit, view_.summand_of(first) + i);
    return {ValueKind::contribution, op.unit, (within ? view_.first_of_replica(first) : first) + i};
  };
  const std::uint32_t place = between  ? ranks.rank / ranks.shards
                              : within ? ranks.rank % ranks.shards
                                       : ranks.rank;
  if (sent != nullptr) {
    const std::uint64_t bytes = all.numel() * grad_bytes_;
    need(*sent, "its contribution", value(place), all.begin * grad_bytes_, bytes);
    if (sent->bytes != bytes) lacks("its contribution, no more");
  }
  if (received == nullptr) return;
  const std::uint64_t part = mine.numel() * grad_bytes_;
  const std::uint32_t count = once      ? ranks.ranks
                              : between ? (view_.in_round(first) + ranks.shards - 1) / ranks.shards
                              : within  ? view_.in_replica(first)
                                        : view_.in_round(first);
  if (received->bytes != count * part) {
    return report(Rule::operand, received->slot,
                  fmt::format("{} receives {} bytes, wanted {} contributions of {}",
                              describe_op(program_, op_), received->bytes, count, part));
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    Access slice = *received;
    slice.offset_bytes += i * part;
    slice.bytes = part;
    put(slice, "what it receives", value(i), mine.begin * grad_bytes_, part);
  }
}

}  // namespace terrace::check_rules
