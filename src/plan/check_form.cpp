// Is the program well formed: ids, lanes, tiers, ranges, waits?
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <utility>

#include "src/plan/check_rules.h"

namespace terrace::check_rules {
namespace {

// Without overflow: is [offset, offset + bytes) inside [0, limit)?
constexpr bool inside(std::uint64_t offset, std::uint64_t bytes, std::uint64_t limit) {
  return offset <= limit && bytes <= limit - offset;
}

bool lane_is_right(const StepProgram& program, const CheckInput& input, const Op& op) {
  switch (op.kind) {
    case OpKind::read_state:
    case OpKind::write_state:
      return op.lane == Lane::store;
    case OpKind::read_param:
    case OpKind::write_param:
    case OpKind::read_gradient:
    case OpKind::write_gradient:
    case OpKind::read_activation:
    case OpKind::write_activation:
      return op.lane == Lane::nvme;
    case OpKind::copy_to_device:
      return op.lane == Lane::h2d;
    case OpKind::copy_to_host:
      return op.lane == Lane::d2h;
    case OpKind::all_gather:
    case OpKind::reduce_scatter:
      return op.lane == Lane::collective;
    case OpKind::forward:
    case OpKind::backward:
    case OpKind::recompute:
    case OpKind::accumulate:
    case OpKind::round_sum:
    case OpKind::sum_group:
      return op.lane == Lane::compute;
    case OpKind::fold:
      return op.lane == Lane::optimizer ||
             (op.lane == Lane::compute &&
              std::all_of(op.accesses.begin(), op.accesses.end(), [&](const Access& access) {
                return program.slots[access.slot].tier == Tier::device;
              }));
    case OpKind::grad_stats:  // joins the ranks' verdicts
      return op.lane == (input.ranks.ranks > 1 ? Lane::collective : Lane::optimizer);
    case OpKind::update:
    case OpKind::cast_param:
    case OpKind::visit_state:
      return op.lane == Lane::optimizer;
    case OpKind::commit:
      return op.lane == Lane::commit;
  }
  return false;
}

// May an operation of this kind access a slot of this tier in this mode?
bool tier_is_right(OpKind kind, Tier tier, AccessMode mode) {
  const bool writes = mode != AccessMode::read;
  const auto moves = [&](Tier from, Tier to) {
    return mode != AccessMode::update && tier == (writes ? to : from);
  };
  switch (kind) {
    case OpKind::read_state:
    case OpKind::read_param:
    case OpKind::read_gradient:
    case OpKind::read_activation:
      return moves(Tier::nvme, Tier::host);
    case OpKind::write_state:  // writes its trailer into the host slot
      return mode == AccessMode::update ? tier == Tier::host : writes && tier == Tier::nvme;
    case OpKind::write_param:
    case OpKind::write_gradient:
    case OpKind::write_activation:
      return moves(Tier::host, Tier::nvme);
    case OpKind::copy_to_device:
      return mode != AccessMode::update && (writes ? tier == Tier::device : tier != Tier::nvme);
    case OpKind::copy_to_host:
      return moves(Tier::device, Tier::host);
    case OpKind::all_gather:
    case OpKind::reduce_scatter:
    case OpKind::forward:
    case OpKind::backward:
    case OpKind::recompute:
    case OpKind::accumulate:
    case OpKind::round_sum:
    case OpKind::sum_group:
      return tier == Tier::device;
    case OpKind::fold:
    case OpKind::grad_stats:
    case OpKind::update:
    case OpKind::cast_param:
    case OpKind::visit_state:
      return tier != Tier::nvme;
    case OpKind::commit:
      return tier == Tier::nvme && !writes;
  }
  return false;
}

// Carried slots are host slots of a state, one a chunk and way, and only between programs that carry.
void check_carry(const StepProgram& program, const CheckInput& input, Findings& findings) {
  std::array<std::vector<bool>, 2> seen;
  for (auto& chunks : seen) chunks.assign(input.chunks.size(), false);
  for (SlotId id = 0; id < program.slots.size(); ++id) {
    const Slot& slot = program.slots[id];
    if (slot.carry == Carry::none) continue;
    const bool in = slot.carry == Carry::in;
    const auto refuse = [&](std::string_view what) {
      findings.add(Rule::form, kNone, kNone, id,
                   fmt::format("{} is carried {}: {}", describe_slot(program, id), in ? "in" : "out", what));
    };
    if (!(in ? is_periodic(program) : trains(program))) {
      refuse(fmt::format("a {} program carries nothing that way", name_of(program.kind)));
    }
    if (slot.item != Item::state_chunk || slot.tier != Tier::host || slot.resident) {
      refuse("wanted a state_chunk on host that is not resident");
    }
    if (slot.chunk >= input.chunks.size()) {
      refuse("it does not say whose it is");
      continue;
    }
    // What is pending of a step is then the write to the store alone.
    if (updates_backward(program) && input.chunks[slot.chunk].state_home != Tier::nvme) {
      refuse("the chunk's state does not live on nvme");
    }
    if (seen[in ? 0 : 1][slot.chunk]) refuse("so is another slot of this chunk");
    seen[in ? 0 : 1][slot.chunk] = true;
  }
}

void check_slots(const StepProgram& program, const CheckInput& input, Findings& findings) {
  for (SlotId id = 0; id < program.slots.size(); ++id) {
    const Slot& slot = program.slots[id];
    const std::uint64_t limit = program.tier_bytes[static_cast<std::size_t>(slot.tier)];
    if (!inside(slot.offset_bytes, slot.bytes, limit)) {
      findings.add(Rule::form, kNone, kNone, id,
                   fmt::format("{} ends beyond the {} bytes of its tier", describe_slot(program, id), limit));
    }
    if ((slot.unit != kNone && slot.unit >= input.model.units.size()) ||
        (slot.chunk != kNone && slot.chunk >= input.chunks.size())) {
      findings.add(Rule::form, kNone, kNone, id,
                   fmt::format("{} names a unit or chunk that does not exist", describe_slot(program, id)));
    }
    const bool of_chunk = slot.item == Item::param_chunk || slot.item == Item::state_chunk ||
                          slot.item == Item::grad_sum || slot.item == Item::accumulator;
    const bool of_unit = slot.item == Item::piece || slot.item == Item::local_sum;
    if (slot.resident && ((of_chunk && slot.chunk == kNone) || (of_unit && slot.unit == kNone))) {
      findings.add(Rule::form, kNone, kNone, id,
                   fmt::format("{} is resident and does not say whose it is", describe_slot(program, id)));
    }
  }
}

// A collective is among several ranks, and those of its kind.
void check_group(const StepProgram& program, const CheckInput& input, OpId id, Findings& findings) {
  const Op& op = program.ops[id];
  if (!is_collective(op.kind)) return;
  const CheckRanks& ranks = input.ranks;
  const bool gathers = op.kind == OpKind::all_gather;
  const bool by_levels = gathers || ranks.reduction == Reduction::hierarchical;
  const std::uint32_t size = op.group == RankGroup::world   ? (gathers ? 1 : ranks.ranks)
                             : op.group == RankGroup::shard ? (by_levels ? ranks.shards : 1)
                                                            : (by_levels ? ranks.replicas : 1);
  if (size > 1) return;
  findings.add(Rule::form, id, kNone, kNone,
               fmt::format("{} is among a group that is none for its kind", describe_op(program, id)));
}

// Accesses of one operation must not touch a byte twice unless all of them read.
void check_alias(const StepProgram& program, OpId id, Findings& findings) {
  std::vector<const Access*> sorted;
  for (const Access& access : program.ops[id].accesses) {
    if (access.bytes > 0) sorted.push_back(&access);
  }
  const auto key = [&](const Access* access) {
    const Slot& slot = program.slots[access->slot];
    return std::pair(slot.tier, slot.offset_bytes + access->offset_bytes);
  };
  std::sort(sorted.begin(), sorted.end(), [&](const Access* a, const Access* b) { return key(a) < key(b); });
  std::uint64_t any_end = 0;
  std::uint64_t write_end = 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const auto [tier, begin] = key(sorted[i]);
    if (i == 0 || key(sorted[i - 1]).first != tier) any_end = write_end = 0;
    const bool writes = sorted[i]->mode != AccessMode::read;
    if (begin < (writes ? any_end : write_end)) {
      findings.add(Rule::form, id, kNone, sorted[i]->slot,
                   fmt::format("{} touches byte {} of the {} tier through two accesses, one of which writes",
                               describe_op(program, id), begin, name_of(tier)));
      return;
    }
    any_end = std::max(any_end, begin + sorted[i]->bytes);
    if (writes) write_end = std::max(write_end, begin + sorted[i]->bytes);
  }
}

bool check_accesses(const StepProgram& program, OpId id, Findings& findings) {
  bool good = true;
  const Op& op = program.ops[id];
  for (const Access& access : op.accesses) {
    const auto refuse = [&](std::string_view what) {
      findings.add(Rule::form, id, kNone, access.slot,
                   fmt::format("{} accesses bytes [{}, +{}) of {}: {}", describe_op(program, id),
                               access.offset_bytes, access.bytes, describe_slot(program, access.slot), what));
      good = false;
    };
    if (access.slot >= program.slots.size()) {
      refuse("there is no such slot");
      continue;
    }
    const Slot& slot = program.slots[access.slot];
    if (!inside(access.offset_bytes, access.bytes, slot.bytes)) refuse("that is beyond the slot");
    if (!tier_is_right(op.kind, slot.tier, access.mode)) refuse("this operation cannot reach that tier so");
  }
  return good;
}

}  // namespace

void check_input(const CheckInput& input, Findings& findings) {
  std::vector<std::vector<const CheckChunk*>> of_unit(input.model.units.size());
  for (const CheckChunk& chunk : input.chunks) {
    if (chunk.unit >= of_unit.size()) {
      findings.add(Rule::input, kNone, kNone, kNone,
                   fmt::format("a chunk names unit {} of {}", chunk.unit, of_unit.size()));
      return;
    }
    of_unit[chunk.unit].push_back(&chunk);
  }
  for (std::size_t unit = 0; unit < of_unit.size(); ++unit) {
    auto& chunks = of_unit[unit];
    std::sort(chunks.begin(), chunks.end(),
              [](const CheckChunk* a, const CheckChunk* b) { return a->first_numel < b->first_numel; });
    std::uint64_t next = 0;
    const std::uint64_t wanted = input.model.units[unit].padded_numel();
    for (const CheckChunk* chunk : chunks) {
      if (chunk->first_numel != next || chunk->numel == 0) break;
      next += chunk->numel;
    }
    if (next != wanted) {
      findings.add(Rule::input, kNone, kNone, kNone,
                   fmt::format("the chunks of unit {} tile {} elements; its flat parameter has {}", unit,
                               next, wanted));
    }
    for (const std::uint32_t shared : input.model.units[unit].shared_units) {
      if (shared >= unit) {
        findings.add(Rule::input, kNone, kNone, kNone,
                     fmt::format("unit {} shares unit {}, which is not an earlier one", unit, shared));
      }
    }
  }
}

void check_form(const StepProgram& program, const CheckInput& input, Findings& findings) {
  if (program.contributions != input.contributions || program.contributions == 0) {
    findings.add(Rule::form, kNone, kNone, kNone,
                 fmt::format("the program has {} contributions, {} (at least 1) were wanted",
                             program.contributions, input.contributions));
  }
  if (program.updates != input.updates) {
    const auto name = [](UpdateTime time) {
      return time == UpdateTime::backward ? "in backward" : "in the next forward";
    };
    findings.add(
        Rule::form, kNone, kNone, kNone,
        fmt::format("the program updates {}, wanted {}", name(program.updates), name(input.updates)));
  }
  check_slots(program, input, findings);
  check_carry(program, input, findings);
  for (OpId id = 0; id < program.ops.size(); ++id) {
    const Op& op = program.ops[id];
    for (const OpId wait : op.waits) {
      if (wait >= id) {
        findings.add(Rule::order, id, wait, kNone,
                     fmt::format("{} waits for {}, which does not stand before it: lanes could wait for ever",
                                 describe_op(program, id), describe_op(program, wait)));
      }
    }
    if (!check_accesses(program, id, findings)) continue;
    check_alias(program, id, findings);
    if (!lane_is_right(program, input, op)) {
      findings.add(Rule::form, id, kNone, kNone,
                   fmt::format("{} is on a lane that does not run its kind", describe_op(program, id)));
    }
    const bool needs_chunk = op.kind == OpKind::read_state || op.kind == OpKind::write_state ||
                             op.kind == OpKind::fold || op.kind == OpKind::update ||
                             op.kind == OpKind::cast_param || op.kind == OpKind::visit_state;
    const bool needs_contribution = is_compute(op.kind) || adds_up(op.kind) || op.kind == OpKind::fold ||
                                    op.kind == OpKind::reduce_scatter;
    check_group(program, input, id, findings);
    const bool chunk_wrong = op.chunk == kNone ? needs_chunk : op.chunk >= input.chunks.size();
    const bool unit_wrong = op.unit == kNone
                                ? is_compute(op.kind) || adds_up(op.kind) || is_collective(op.kind)
                                : op.unit >= input.model.units.size();
    const bool contribution_wrong =
        op.micro_batch == kNone ? needs_contribution : op.micro_batch >= program.contributions;
    if (chunk_wrong || unit_wrong || contribution_wrong) {
      findings.add(Rule::form, id, kNone, kNone,
                   fmt::format("{} lacks its {}, or names one that does not exist", describe_op(program, id),
                               chunk_wrong ? "chunk" : (unit_wrong ? "unit" : "contribution")));
    }
  }
}

}  // namespace terrace::check_rules
