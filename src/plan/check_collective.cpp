// What collectives need of this rank, and what they leave: what the same program sends on the other ranks.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <numeric>

#include "src/plan/check_data.h"

namespace terrace::check_rules {

// What the sums of a unit are once they have come from all replicas. A single contribution is its own sum.
Value DataFlow::spread_sum(std::uint32_t unit) const {
  if (view_.rounds_sums()) return {ValueKind::rounded_sum, unit, input_.contributions};
  return {ValueKind::contribution, unit, 0};
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

// One round: this rank's contribution to all, the own part of everyone's to this rank.
void DataFlow::reduce_scatter(const Op& op) {
  const std::uint32_t mine = op.micro_batch + input_.ranks.rank;
  const std::uint64_t unit_bytes = input_.model.units[op.unit].padded_numel() * grad_bytes_;
  const Elements& own = view_.own(op.unit);
  const Access* sent = nullptr;
  const Access* received = nullptr;
  for (const Access& access : op.accesses) {
    const Slot& slot = program_.slots[access.slot];
    const bool reads = access.role == Role::grads && access.mode == AccessMode::read && sent == nullptr &&
                       slot.item == Item::contribution;
    const bool writes = access.role == Role::received && access.mode == AccessMode::write &&
                        received == nullptr && slot.item == Item::received;
    if (reads) sent = &access;
    if (writes) received = &access;
    if (reads || writes) continue;
    return report(Rule::operand, access.slot,
                  fmt::format("{}: {} is not its contribution, or what it receives",
                              describe_op(program_, op_), describe_slot(program_, access.slot)));
  }
  const bool contributes = view_.contributes(mine);
  if (contributes != (sent != nullptr) || own.empty() != (received == nullptr)) {
    return report(Rule::operand, kNone,
                  fmt::format("{}: rank {} has {} contribution in this round and {} part of the unit, wanted "
                              "as many accesses",
                              describe_op(program_, op_), input_.ranks.rank, contributes ? "one" : "no",
                              own.empty() ? "no" : "one"));
  }
  if (sent != nullptr) {
    need(*sent, "its contribution", {ValueKind::contribution, op.unit, mine}, 0, unit_bytes);
    if (sent->bytes != unit_bytes) lacks("its contribution, no more");
  }
  if (received == nullptr) return;
  const std::uint64_t part = own.numel() * grad_bytes_;
  const std::uint32_t count = view_.in_round(op.micro_batch);
  if (received->bytes != count * part) {
    return report(Rule::operand, received->slot,
                  fmt::format("{} receives {} bytes, wanted {} contributions of {}",
                              describe_op(program_, op_), received->bytes, count, part));
  }
  for (std::uint32_t k = 0; k < count; ++k) {
    Access slice = *received;
    slice.offset_bytes += k * part;
    slice.bytes = part;
    put(slice, "what it receives", {ValueKind::contribution, op.unit, op.micro_batch + k},
        own.begin * grad_bytes_, part);
  }
}

}  // namespace terrace::check_rules
