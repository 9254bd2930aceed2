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
    case ValueKind::local_sum:
      return fmt::format("the rank's sum of unit {} over {} contributions", value.id, value.tag);
    case ValueKind::summand:
      return fmt::format("summand {} of unit {}", value.tag, value.id);
    case ValueKind::sum:
      return fmt::format("the sum of chunk {} over {} summands", value.id, value.tag);
    case ValueKind::rounded_sum:
      return fmt::format("the rounded sums of unit {} over {} summands", value.id, value.tag);
    case ValueKind::pending_sum:
      return fmt::format("the sum of chunk {} of the step before", value.id);
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
      return item == Item::contribution || item == Item::grad_chunk || item == Item::grad_sum ||
             item == Item::accumulator;
    case OpKind::read_activation:
    case OpKind::write_activation:
      return item == Item::activation || item == Item::activation_grad || item == Item::saved ||
             item == Item::shared_grad;
    default:
      return item != Item::workspace;
  }
}

}  // namespace

DataFlow::DataFlow(const StepProgram& program, const CheckInput& input, Pending pending, Findings& findings)
    : program_(program),
      input_(input),
      view_(program, input),
      pending_(pending == Pending::something),
      step_(updates_forward(program) && pending_ ? kUpdated : kBefore),
      newest_(updates_backward(program) && trains(program) ? kUpdated : step_),
      findings_(findings),
      param_bytes_(dtype_bytes(input.model.param_dtype)),
      grad_bytes_(dtype_bytes(input.model.grad_dtype)),
      carried_in_(carried_slots(program, Carry::in, input.chunks.size())),
      carried_out_(carried_slots(program, Carry::out, input.chunks.size())),
      state_found_(input.chunks.size(), false),
      param_found_(input.chunks.size(), false),
      sum_found_(input.chunks.size(), false),
      uses_(input.model.units.size(), 0),
      held_(program.slots.size()),
      written_bytes_(program.slots.size(), 0) {
  for (const UnitShape& unit : input.model.units) {
    if (!unit.shared_units.empty() && unit.shared_grad_bytes > 0) ++uses_[unit.shared_units[0]];
  }
  for (SlotId id = 0; id < program.slots.size(); ++id) {
    if (program.slots[id].resident || program.slots[id].carry == Carry::in) begin(id);
  }
}

void DataFlow::run() {
  for (OpId id = 0; id < program_.ops.size(); ++id) {
    const Op& op = program_.ops[id];
    if (op.predicated && !pending_) continue;
    op_ = id;
    if (is_transfer(op.kind)) {
      transfer(op);
    } else if (op.kind == OpKind::all_gather) {
      all_gather(op);
    } else if (op.kind == OpKind::reduce_scatter) {
      reduce_scatter(op);
    } else if (is_compute(op.kind)) {
      compute(op);
    } else if (op.kind == OpKind::accumulate) {
      accumulate(op);
    } else if (op.kind == OpKind::round_sum) {
      round_sum(op);
    } else if (op.kind == OpKind::sum_group) {
      sum_group(op);
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

void DataFlow::report(Rule rule, SlotId slot, std::string text) {
  if (is_periodic(program_) && !pending_) text = "when nothing is pending: " + text;
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
  const bool to_store = op.kind == OpKind::write_state;  // which puts its trailer into the source
  if (!has_form(op, {to_store ? AccessMode::update : AccessMode::read, AccessMode::write})) return;
  const Access& from = op.accesses[0];
  const Access& to = op.accesses[1];
  if (view_.is_foreign_extent(to.slot)) {
    return report(Rule::home, to.slot,
                  fmt::format("{} writes {}, the store's extent of a chunk that rank {} owns",
                              describe_op(program_, op_), describe_slot(program_, to.slot),
                              input_.chunks[program_.slots[to.slot].chunk].owner));
  }
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
    check_predicate(op, to, content);
  }
  written_bytes_[to.slot] += to.bytes;
}

// What brings updated data home is part of the pending update. Not so when a commit writes the states that
// live elsewhere than on nvme: these are dirty from earlier steps too. Nor when parameters came from the rank
// that updates them: they are gathered whether anything was pending or not.
void DataFlow::check_predicate(const Op& op, const Access& to, const Content& content) {
  const Value& value = content.value;
  const bool versioned = value.kind == ValueKind::params || value.kind == ValueKind::state;
  const Slot& home = program_.slots[to.slot];
  if (home.item == Item::param_chunk && !view_.holds(home.chunk)) return;
  if (!updates_forward(program_) || op.predicated || !home.resident || !versioned || value.tag != kUpdated) {
    return;
  }
  if (op.kind == OpKind::write_state && program_.kind == ProgramKind::train_commit &&
      input_.chunks[value.id].state_home != Tier::nvme) {
    return;
  }
  report(Rule::predicate, to.slot,
         fmt::format("{} brings {} home and is not predicated: it must not run when nothing is pending",
                     describe_op(program_, op_), describe(value)));
}

void check_data(const StepProgram& program, const CheckInput& input, Pending pending, Findings& findings) {
  DataFlow(program, input, pending, findings).run();
}

}  // namespace terrace::check_rules
