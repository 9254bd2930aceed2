// What homes and carried slots hold before the first operation, at a commit and after the last operation.
#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "src/plan/check_data.h"

namespace terrace::check_rules {

// Of a chunk's parameters in their home at first. What another rank has updated during backward is gathered
// by the next program.
std::uint32_t DataFlow::first_version(std::size_t chunk) const {
  const bool left = updates_backward(program_) && pending_ && !view_.holds(chunk);
  const bool making = program_.kind == ProgramKind::materialize;
  if (input_.chunks[chunk].frozen && view_.keeps_parameters(chunk) && !making) return step_;
  return making || left || !view_.keeps_parameters(chunk) ? kStale : kBefore;
}

std::uint32_t DataFlow::last_version(std::size_t chunk) const {
  return view_.holds(chunk) && !input_.chunks[chunk].frozen ? newest_ : step_;
}

void DataFlow::begin(SlotId id) {
  const Slot& slot = program_.slots[id];
  held_[id].assign(0, slot.bytes, initial(id));
  if (!slot.resident || slot.item != Item::piece) return;
  for (std::size_t c = 0; c < input_.chunks.size(); ++c) {
    const CheckChunk& chunk = input_.chunks[c];
    if (chunk.unit != slot.unit) continue;
    const std::uint64_t from = chunk.first_numel * param_bytes_;
    held_[id].assign(std::min(from, slot.bytes), std::min(from + chunk.numel * param_bytes_, slot.bytes),
                     {{ValueKind::params, slot.unit, first_version(c)}, from});
  }
}

// Where parameters are made, all that is known at first is what the store holds.
Content DataFlow::initial(SlotId id) const {
  const Slot& slot = program_.slots[id];
  if (slot.carry == Carry::in && pending_) return {{ValueKind::state, slot.chunk, kBefore}, 0};
  if (!slot.resident) return {};
  const bool making = program_.kind == ProgramKind::materialize;
  switch (slot.item) {
    case Item::param_chunk: {
      const CheckChunk& chunk = input_.chunks[slot.chunk];
      return {{ValueKind::params, chunk.unit, first_version(slot.chunk)}, chunk.first_numel * param_bytes_};
    }
    case Item::piece:
      return {{ValueKind::params, slot.unit, kStale}, 0};
    case Item::state_chunk: {
      const bool home = input_.chunks[slot.chunk].state_home == slot.tier;
      // The newest state is in the carried slot, and its write to the store is pending.
      const bool ahead = updates_backward(program_) && pending_ && carried_in_[slot.chunk] != kNone;
      // What another rank writes to the store is not known but when a run starts; then the copy is not yet
      // made.
      const bool foreign = view_.is_foreign_extent(id);
      const bool store = foreign || (slot.tier == Tier::nvme && view_.owns(slot.chunk));
      const bool kept = input_.chunks[slot.chunk].frozen && store && !foreign;  // as the run found it
      const bool known = making ? store : (home && !foreign && !ahead) || kept;
      return {{ValueKind::state, slot.chunk, known ? kBefore : kStale}, 0};
    }
    case Item::grad_sum:
      if (updates_forward(program_) && pending_) return {{ValueKind::pending_sum, slot.chunk}, 0};
      return {};
    default:
      return {};
  }
}

void DataFlow::commit() {
  std::vector<bool> found(input_.chunks.size(), false);
  for (SlotId id = 0; id < program_.slots.size(); ++id) {
    const Slot& slot = program_.slots[id];
    if (slot.item != Item::state_chunk || slot.tier != Tier::nvme || !slot.resident) continue;
    if (!view_.owns(slot.chunk)) continue;
    found[slot.chunk] = true;
    const CheckChunk& chunk = input_.chunks[slot.chunk];
    check_home(Rule::commit, id, {ValueKind::state, slot.chunk, chunk.frozen ? kBefore : step_}, 0,
               chunk.state_bytes);
  }
  for (std::size_t chunk = 0; chunk < found.size(); ++chunk) {
    if (found[chunk] || !view_.owns(chunk)) continue;
    report(Rule::commit, kNone,
           fmt::format("the store has no extent (a resident state_chunk slot on nvme) of chunk {}", chunk));
  }
}

void DataFlow::check_home(Rule rule, SlotId slot, const Value& wanted, std::uint64_t from,
                          std::uint64_t bytes, std::uint64_t offset) {
  Value found;
  if (program_.slots[slot].bytes < offset + bytes) {
    report(rule, slot,
           fmt::format("{} is too small: wanted {} bytes", describe_slot(program_, slot), offset + bytes));
  } else if (!holds(slot, offset, bytes, wanted, from, &found)) {
    report(rule, slot,
           fmt::format("at the {}, {} holds {}{}; wanted {}", rule == Rule::commit ? "commit" : "end",
                       describe_slot(program_, slot), found == wanted ? "other bytes of " : "",
                       describe(found), describe(wanted)));
  }
}

void DataFlow::check_state(SlotId id) {
  const Slot& slot = program_.slots[id];
  const CheckChunk& chunk = input_.chunks[slot.chunk];
  if (!view_.holds(slot.chunk)) return;
  if (slot.resident && (chunk.state_home != slot.tier || view_.is_foreign_extent(id))) return;
  if (slot.resident) state_found_[slot.chunk] = true;
  // Its write is left to the next program.
  const bool ahead = updates_backward(program_) && carried_out_[slot.chunk] != kNone;
  if (slot.resident && ahead) return;
  check_home(Rule::home, id, {ValueKind::state, slot.chunk, chunk.frozen ? kBefore : newest_}, 0,
             chunk.state_bytes);
}

void DataFlow::check_params(SlotId id) {
  const Slot& slot = program_.slots[id];
  if (slot.item == Item::param_chunk) {
    const CheckChunk& chunk = input_.chunks[slot.chunk];
    if (!view_.keeps_parameters(slot.chunk)) return;
    if (chunk.param_home == slot.tier) param_found_[slot.chunk] = true;
    check_home(Rule::home, id, {ValueKind::params, chunk.unit, last_version(slot.chunk)},
               chunk.first_numel * param_bytes_, chunk.numel * param_bytes_);
  } else {
    for (std::size_t c = 0; c < input_.chunks.size(); ++c) {
      const CheckChunk& chunk = input_.chunks[c];
      if (chunk.unit != slot.unit || !view_.keeps_parameters(c)) continue;
      if (chunk.param_home == slot.tier) param_found_[c] = true;
      const std::uint64_t from = chunk.first_numel * param_bytes_;
      check_home(Rule::home, id, {ValueKind::params, slot.unit, last_version(c)}, from,
                 chunk.numel * param_bytes_, from);
    }
  }
  if (written_bytes_[id] > slot.bytes) {
    report(Rule::home, id,
           fmt::format("{} bytes are written to {}: more than once", written_bytes_[id],
                       describe_slot(program_, id)));
  }
}

void DataFlow::check_sum(SlotId id) {
  const std::uint32_t chunk = program_.slots[id].chunk;
  if (!view_.holds(chunk)) return;
  sum_found_[chunk] = true;
  const CheckChunk& c = input_.chunks[chunk];
  if (view_.is_replicated()) {
    return check_home(Rule::home, id, spread_sum(c.unit), c.first_numel * grad_bytes_, c.numel * sum_bytes());
  }
  if (holds_only_summand(id, 0, chunk)) return;
  check_home(Rule::home, id, {ValueKind::sum, chunk, view_.summands()}, 0, c.numel * sum_bytes());
}

void DataFlow::check_homes() {
  const bool leaves_sums = updates_forward(program_) && trains(program_);
  for (SlotId id = 0; id < program_.slots.size(); ++id) {
    const Slot& slot = program_.slots[id];
    if (slot.item == Item::state_chunk && (slot.resident || slot.carry == Carry::out)) check_state(id);
    if (!slot.resident) continue;
    if (slot.item == Item::param_chunk || slot.item == Item::piece) check_params(id);
    if (slot.item == Item::grad_sum && leaves_sums) check_sum(id);
  }
  const bool wants_state = program_.kind != ProgramKind::eval;
  for (std::size_t chunk = 0; chunk < input_.chunks.size(); ++chunk) {
    const auto missing = [&](std::string_view what) {
      report(Rule::home, kNone,
             fmt::format("no resident slot on its home tier holds the {} of chunk {}", what, chunk));
    };
    if (view_.keeps_parameters(chunk) && !param_found_[chunk]) missing("parameters");
    if (!view_.holds(chunk)) continue;
    if (wants_state && !state_found_[chunk]) missing("state");
    if (leaves_sums && !input_.chunks[chunk].frozen && !sum_found_[chunk]) missing("summed gradient");
  }
}

}  // namespace terrace::check_rules
