#include "src/plan/check_data.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

namespace terrace::check_rules {

std::string describe(const Value& value) {
  const auto version = [&] {
    return value.tag == kStale ? "older than this step"
                               : (value.tag == kBefore ? "before the update" : "updated");
  };
  switch (value.kind) {
    case ValueKind::nothing:
      return "nothing";
    case ValueKind::params:
      return fmt::format("parameters of unit {} ({})", value.id, version());
    case ValueKind::state:
      return fmt::format("state of chunk {} ({})", value.id, version());
    case ValueKind::contribution:
      return fmt::format("contribution {} of unit {}", value.tag, value.id);
    case ValueKind::sum:
      return fmt::format("the sum of chunk {} over {} contributions", value.id, value.tag);
    case ValueKind::activation:
      return fmt::format("activation of unit {}, contribution {}", value.id, value.tag);
    case ValueKind::activation_grad:
      return fmt::format("activation gradient of unit {}, contribution {}", value.id, value.tag);
    case ValueKind::saved:
      return fmt::format("saved values of unit {}, contribution {}", value.id, value.tag);
    case ValueKind::shared_grad:
      return fmt::format("shared gradient for unit {}, contribution {}, over {} uses", value.id, value.tag,
                         value.uses);
  }
  return "unknown";
}

namespace {

bool moves_item(OpKind kind, Item item) {
  switch (kind) {
    case OpKind::read_state:
    case OpKind::write_state:
      return item == Item::state_chunk;
    case OpKind::read_param:
    case OpKind::write_param:
      return item == Item::param_chunk;
    case OpKind::read_gradient:
    case OpKind::write_gradient:
    case OpKind::reduce_scatter:
      return item == Item::contribution || item == Item::grad_chunk || item == Item::grad_sum;
    case OpKind::read_activation:
    case OpKind::write_activation:
      return item == Item::activation || item == Item::activation_grad || item == Item::saved ||
             item == Item::shared_grad;
    case OpKind::all_gather:
      return item == Item::param_chunk || item == Item::piece;
    default:
      return item != Item::workspace;
  }
}

}  // namespace

DataFlow::DataFlow(const StepProgram& program, const CheckInput& input, Verdict verdict, Findings& findings)
    : program_(program),
      input_(input),
      dropped_(verdict == Verdict::drop),
      newest_(trains(program) && !dropped_ ? kUpdated : kBefore),
      findings_(findings),
      param_bytes_(dtype_bytes(input.model.param_dtype)),
      grad_bytes_(dtype_bytes(input.model.grad_dtype)),
      uses_(input.model.units.size(), 0),
      held_(program.slots.size()),
      written_bytes_(program.slots.size(), 0) {
  for (const UnitShape& unit : input.model.units) {
    if (!unit.shared_units.empty() && unit.shared_grad_bytes > 0) ++uses_[unit.shared_units[0]];
  }
  for (SlotId id = 0; id < program.slots.size(); ++id) {
    const Slot& slot = program.slots[id];
    if (slot.resident) held_[id].assign(0, slot.bytes, initial(slot));
  }
}

void DataFlow::run() {
  for (OpId id = 0; id < program_.ops.size(); ++id) {
    const Op& op = program_.ops[id];
    if (op.predicated && dropped_) continue;
    op_ = id;
    if (is_transfer(op.kind)) {
      transfer(op);
    } else if (is_compute(op.kind)) {
      compute(op);
    } else if (op.kind == OpKind::fold) {
      fold(op);
    } else if (op.kind == OpKind::update) {
      update(op);
    } else if (op.kind == OpKind::cast_param) {
      cast_param(op);
    } else if (op.kind == OpKind::visit_state) {
      if (!has_form(op, {AccessMode::read})) continue;
      need(op.accesses[0], "the state", {ValueKind::state, op.chunk, kBefore}, 0,
           input_.chunks[op.chunk].state_bytes);
    } else if (op.kind == OpKind::commit) {
      commit();
    }
  }
  op_ = kNone;
  check_homes();
}

// Where parameters are made, all that is known at first is what the store holds.
Content DataFlow::initial(const Slot& slot) const {
  const bool making = program_.kind == ProgramKind::materialize;
  switch (slot.item) {
    case Item::param_chunk: {
      const CheckChunk& chunk = input_.chunks[slot.chunk];
      return {{ValueKind::params, chunk.unit, making ? kStale : kBefore}, chunk.first_numel * param_bytes_};
    }
    case Item::piece:
      return {{ValueKind::params, slot.unit, making ? kStale : kBefore}, 0};
    case Item::state_chunk: {
      const bool home = input_.chunks[slot.chunk].state_home == slot.tier;
      const bool known = making ? slot.tier == Tier::nvme : home;
      return {{ValueKind::state, slot.chunk, known ? kBefore : kStale}, 0};
    }
    default:
      return {};
  }
}

void DataFlow::report(Rule rule, SlotId slot, std::string text) {
  if (dropped_) text = "when the verdict drops the step: " + text;
  findings_.add(rule, op_, kNone, slot, std::move(text));
}

// Do bytes [offset, offset + bytes) of the slot hold bytes [from, from + bytes) of `wanted`? If not, what was
// found.
bool DataFlow::holds(SlotId slot, std::uint64_t offset, std::uint64_t bytes, const Value& wanted,
                     std::uint64_t from, Value* found) const {
  bool good = true;
  held_[slot].visit(offset, offset + bytes, [&](std::uint64_t begin, std::uint64_t, const Content& content) {
    if (!good || (content.value == wanted && content.offset == from + (begin - offset))) return;
    good = false;
    if (found != nullptr) *found = content.value;
  });
  return good;
}

void DataFlow::need(const Access& access, std::string_view what, const Value& wanted, std::uint64_t from,
                    std::uint64_t bytes) {
  Value found;
  if (access.bytes < bytes) {
    report(Rule::operand, access.slot,
           fmt::format("{} has {} bytes of {} for {}, wanted {}", describe_op(program_, op_), access.bytes,
                       describe_slot(program_, access.slot), what, bytes));
  } else if (!holds(access.slot, access.offset_bytes, bytes, wanted, from, &found)) {
    report(Rule::operand, access.slot,
           fmt::format("{} takes {} from {}, which holds {}{}; wanted {}", describe_op(program_, op_), what,
                       describe_slot(program_, access.slot), found == wanted ? "other bytes of " : "",
                       describe(found), describe(wanted)));
  }
}

void DataFlow::put(const Access& access, std::string_view what, const Value& value, std::uint64_t from,
                   std::uint64_t bytes) {
  if (access.bytes < bytes) {
    report(Rule::operand, access.slot,
           fmt::format("{} has {} bytes of {} for {}, wanted {}", describe_op(program_, op_), access.bytes,
                       describe_slot(program_, access.slot), what, bytes));
  }
  held_[access.slot].assign(access.offset_bytes, access.offset_bytes + access.bytes, {value, from});
  written_bytes_[access.slot] += access.bytes;
}

// Are the operation's accesses of these modes, in this order?
bool DataFlow::has_form(const Op& op, std::initializer_list<AccessMode> modes) {
  const auto same = [](const Access& access, AccessMode mode) { return access.mode == mode; };
  if (std::equal(op.accesses.begin(), op.accesses.end(), modes.begin(), modes.end(), same)) return true;
  report(Rule::operand, kNone,
         fmt::format("{} does not have the {} accesses of its kind, in their order",
                     describe_op(program_, op_), modes.size()));
  return false;
}

void DataFlow::transfer(const Op& op) {
  for (const Access& access : op.accesses) {
    if (!moves_item(op.kind, program_.slots[access.slot].item)) {
      return report(
          Rule::operand, access.slot,
          fmt::format("{} cannot move {}", describe_op(program_, op_), describe_slot(program_, access.slot)));
    }
  }
  if (op.kind == OpKind::read_state && program_.kind == ProgramKind::materialize && op.accesses.size() == 1) {
    // Without a store the state takes its initial value.
    if (!has_form(op, {AccessMode::write})) return;
    put(op.accesses[0], "the state", {ValueKind::state, op.chunk, kBefore}, 0,
        input_.chunks[op.chunk].state_bytes);
    return;
  }
  if (!has_form(op, {AccessMode::read, AccessMode::write})) return;
  const Access& from = op.accesses[0];
  const Access& to = op.accesses[1];
  if (from.bytes != to.bytes || from.bytes == 0) {
    return report(
        Rule::operand, to.slot,
        fmt::format("{} reads {} bytes and writes {}", describe_op(program_, op_), from.bytes, to.bytes));
  }
  std::vector<std::pair<std::uint64_t, Content>> runs;  // by offset in the source
  held_[from.slot].visit(from.offset_bytes, from.offset_bytes + from.bytes,
                         [&](std::uint64_t begin, std::uint64_t, const Content& content) {
                           runs.emplace_back(begin - from.offset_bytes, content);
                         });
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto& [begin, content] = runs[i];
    const std::uint64_t end = i + 1 < runs.size() ? runs[i + 1].first : from.bytes;
    held_[to.slot].assign(to.offset_bytes + begin, to.offset_bytes + end, content);
    check_predicate(op, content);
  }
  written_bytes_[to.slot] += to.bytes;
}

// What moves updated data makes sense after an update only. Not so when a commit writes the states that live
// elsewhere than on nvme: these are dirty from earlier steps too.
void DataFlow::check_predicate(const Op& op, const Content& content) {
  const Value& value = content.value;
  const bool versioned = value.kind == ValueKind::params || value.kind == ValueKind::state;
  if (dropped_ || op.predicated || !versioned || value.tag != kUpdated) return;
  const bool to_store = op.kind == OpKind::write_state || op.kind == OpKind::copy_to_host;
  if (to_store && value.kind == ValueKind::state && program_.kind == ProgramKind::train_commit &&
      input_.chunks[value.id].state_home != Tier::nvme) {
    return;
  }
  report(Rule::predicate, kNone,
         fmt::format("{} moves {} and is not predicated: a dropped step must not run it",
                     describe_op(program_, op_), describe(value)));
}

void DataFlow::commit() {
  std::vector<bool> found(input_.chunks.size(), false);
  for (SlotId id = 0; id < program_.slots.size(); ++id) {
    const Slot& slot = program_.slots[id];
    if (slot.item != Item::state_chunk || slot.tier != Tier::nvme || slot.chunk == kNone || !slot.resident)
      continue;
    found[slot.chunk] = true;
    check_home(Rule::commit, id, {ValueKind::state, slot.chunk, newest_}, 0,
               input_.chunks[slot.chunk].state_bytes);
  }
  for (std::size_t chunk = 0; chunk < found.size(); ++chunk) {
    if (found[chunk]) continue;
    report(Rule::commit, kNone,
           fmt::format("the store has no extent (a resident state_chunk slot on nvme) of chunk {}", chunk));
  }
}

void DataFlow::check_home(Rule rule, SlotId slot, const Value& wanted, std::uint64_t from,
                          std::uint64_t bytes) {
  Value found;
  if (program_.slots[slot].bytes < bytes) {
    report(rule, slot, fmt::format("{} is too small: wanted {} bytes", describe_slot(program_, slot), bytes));
  } else if (!holds(slot, 0, bytes, wanted, from, &found)) {
    report(rule, slot,
           fmt::format("at the {}, {} holds {}{}; wanted {}", rule == Rule::commit ? "commit" : "end",
                       describe_slot(program_, slot), found == wanted ? "other bytes of " : "",
                       describe(found), describe(wanted)));
  }
}

void DataFlow::check_homes() {
  std::vector<bool> state_found(input_.chunks.size(), false);
  std::vector<bool> param_found(input_.chunks.size(), false);
  std::vector<std::vector<std::size_t>> of_unit(input_.model.units.size());
  for (std::size_t c = 0; c < input_.chunks.size(); ++c) of_unit[input_.chunks[c].unit].push_back(c);

  for (SlotId id = 0; id < program_.slots.size(); ++id) {
    const Slot& slot = program_.slots[id];
    if (!slot.resident) continue;
    if (slot.item == Item::state_chunk) {
      const CheckChunk& chunk = input_.chunks[slot.chunk];
      if (chunk.state_home != slot.tier) continue;
      state_found[slot.chunk] = true;
      check_home(Rule::home, id, {ValueKind::state, slot.chunk, newest_}, 0, chunk.state_bytes);
      continue;
    }
    if (slot.item == Item::param_chunk) {
      const CheckChunk& chunk = input_.chunks[slot.chunk];
      if (chunk.param_home == slot.tier) param_found[slot.chunk] = true;
      check_home(Rule::home, id, {ValueKind::params, chunk.unit, newest_}, chunk.first_numel * param_bytes_,
                 chunk.numel * param_bytes_);
    } else if (slot.item == Item::piece) {
      for (const std::size_t c : of_unit[slot.unit]) {
        if (input_.chunks[c].param_home == slot.tier) param_found[c] = true;
      }
      check_home(Rule::home, id, {ValueKind::params, slot.unit, newest_}, 0,
                 input_.model.units[slot.unit].padded_numel() * param_bytes_);
    } else {
      continue;
    }
    if (written_bytes_[id] > slot.bytes) {
      report(Rule::home, id,
             fmt::format("{} bytes are written to {}: more than once", written_bytes_[id],
                         describe_slot(program_, id)));
    }
  }
  const bool wants_state = program_.kind != ProgramKind::eval;
  for (std::size_t chunk = 0; chunk < input_.chunks.size(); ++chunk) {
    const std::string_view missing =
        !param_found[chunk] ? "parameters" : (wants_state && !state_found[chunk] ? "state" : "");
    if (missing.empty()) continue;
    report(Rule::home, kNone,
           fmt::format("no resident slot on its home tier holds the {} of chunk {}", missing, chunk));
  }
}

void check_data(const StepProgram& program, const CheckInput& input, Verdict verdict, Findings& findings) {
  DataFlow(program, input, verdict, findings).run();
}

}  // namespace terrace::check_rules
