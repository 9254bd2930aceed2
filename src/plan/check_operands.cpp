// What compute operations, folds and updates need, and what they leave.
#include <spdlog/fmt/fmt.h>

#include "src/plan/check_data.h"

namespace terrace::check_rules {
namespace {

// The operation's access of that role that reads (or writes); null when it has none.
const Access* find(const Op& op, Role role, bool writes) {
  const AccessMode other = writes ? AccessMode::read : AccessMode::write;
  for (const Access& access : op.accesses) {
    if (access.role == role && access.mode != other) return &access;
  }
  return nullptr;
}

}  // namespace

void DataFlow::lacks(std::string_view what) {
  report(Rule::operand, kNone, fmt::format("{} has no access for {}", describe_op(program_, op_), what));
}

void DataFlow::take(const Op& op, Role role, std::string_view what, const Value& wanted,
                    std::uint64_t bytes) {
  if (bytes == 0) return;
  if (const Access* access = find(op, role, false)) {
    need(*access, what, wanted, 0, bytes);
  } else {
    lacks(what);
  }
}

void DataFlow::give(const Op& op, Role role, std::string_view what, const Value& value, std::uint64_t bytes,
                    bool may_lack) {
  if (bytes == 0) return;
  if (const Access* access = find(op, role, true)) {
    put(*access, what, value, 0, bytes);
  } else if (!may_lack) {
    lacks(what);
  }
}

void DataFlow::compute(const Op& op) {
  const auto& units = input_.model.units;
  const UnitShape& unit = units[op.unit];
  const Value output{ValueKind::activation, op.unit, op.micro_batch};
  const Value saved{ValueKind::saved, op.unit, op.micro_batch};

  if (op.kind != OpKind::backward || unit.backward_reads_params) {
    take(op, Role::params, "its parameters", {ValueKind::params, op.unit, step_},
         unit.padded_numel() * param_bytes_);
    if (!unit.shared_units.empty()) {
      const std::uint32_t shared = unit.shared_units[0];
      take(op, Role::shared_params, "the parameters it shares", {ValueKind::params, shared, step_},
           units[shared].padded_numel() * param_bytes_);
    }
  }
  if (op.unit > 0) {
    take(op, Role::input, "its input", {ValueKind::activation, op.unit - 1, op.micro_batch},
         units[op.unit - 1].output_bytes);
  }
  const bool is_backward = op.kind == OpKind::backward;
  give(op, Role::workspace, "its workspace", {},
       is_backward ? unit.backward_workspace_bytes : unit.forward_workspace_bytes);
  if (is_backward) return backward(op, unit);
  // A forward whose saved values will be rebuilt need not keep them; rebuilding them need not keep the
  // output.
  const bool rebuilds = op.kind == OpKind::recompute;
  give(op, Role::output, "its output", output, unit.output_bytes, rebuilds);
  give(op, Role::saved, "what it saves", saved, unit.saved_bytes, !rebuilds);
}

void DataFlow::backward(const Op& op, const UnitShape& unit) {
  const std::uint32_t k = op.micro_batch;
  if (op.unit + 1 < input_.model.units.size()) {
    take(op, Role::saved, "what forward saved", {ValueKind::saved, op.unit, k}, unit.saved_bytes);
    take(op, Role::output_grad, "the gradient of its output", {ValueKind::activation_grad, op.unit, k},
         unit.output_bytes);
  } else {  // the loss: forward and backward in one
    give(op, Role::saved, "what it saves", {}, unit.saved_bytes, true);
  }
  if (op.unit > 0) {
    give(op, Role::input_grad, "the gradient of its input", {ValueKind::activation_grad, op.unit - 1, k},
         input_.model.units[op.unit - 1].output_bytes);
  }
  give(op, Role::grads, "its gradient", {ValueKind::contribution, op.unit, k},
       unit.padded_numel() * grad_bytes_);
  tied_uses(op, unit);
}

// Each sharing unit hands on its gradient (the first writes, the next add to it); the owner takes all of
// them.
void DataFlow::tied_uses(const Op& op, const UnitShape& unit) {
  if (uses_[op.unit] > 0) {
    std::uint64_t bytes = 0;
    for (const UnitShape& other : input_.model.units) {
      if (!other.shared_units.empty() && other.shared_units[0] == op.unit && other.shared_grad_bytes > 0) {
        bytes = other.shared_grad_bytes;
      }
    }
    take(op, Role::shared_grad, "the gradient of its tied uses",
         {ValueKind::shared_grad, op.unit, op.micro_batch, uses_[op.unit]}, bytes);
  }
  if (unit.shared_units.empty() || unit.shared_grad_bytes == 0) return;
  Value value{ValueKind::shared_grad, unit.shared_units[0], op.micro_batch, 0};
  const Access* access = find(op, Role::shared_grad, true);
  if (access != nullptr && access->mode == AccessMode::update) {
    held_[access->slot].visit(
        access->offset_bytes, access->offset_bytes + 1,
        [&](std::uint64_t, std::uint64_t, const Content& content) { value.uses = content.value.uses; });
    need(*access, "the tied uses added before", value, 0, unit.shared_grad_bytes);
  }
  ++value.uses;
  give(op, Role::shared_grad, "the gradient of its shared use", value, unit.shared_grad_bytes);
}

void DataFlow::fold(const Op& op) {
  const CheckChunk& chunk = input_.chunks[op.chunk];
  const std::uint32_t k = op.micro_batch;
  const bool in_place = op.accesses.size() == 1 && view_.summands() == 1;
  const AccessMode mode = k == 0 ? AccessMode::write : AccessMode::update;
  const bool rounds = view_.rounds_sums() && k + 1 == view_.summands();
  if (in_place ? !has_form(op, {AccessMode::read})
               : (rounds ? !has_form(op, {AccessMode::read, mode, AccessMode::write})
                         : !has_form(op, {AccessMode::read, mode}))) {
    return;
  }
  need(op.accesses[0], "the summand", summand(chunk.unit, k), chunk.first_numel * grad_bytes_,
       chunk.numel * grad_bytes_);
  if (in_place) return;  // a single summand is the sum
  const Access& sum = op.accesses[1];
  if (program_.slots[sum.slot].item != (view_.rounds_sums() ? Item::accumulator : Item::grad_sum)) {
    report(Rule::operand, sum.slot,
           fmt::format("{} folds into {}, wanted {}", describe_op(program_, op_),
                       describe_slot(program_, sum.slot),
                       view_.rounds_sums() ? "an accumulator" : "a grad_sum"));
  }
  const std::uint64_t bytes = chunk.numel * added_bytes();
  if (k > 0) need(sum, "the sum so far", {ValueKind::sum, op.chunk, k}, 0, bytes);
  put(sum, "the sum", {ValueKind::sum, op.chunk, k + 1}, 0, bytes);
  if (!rounds) return;
  put(op.accesses[2], "the rounded sum", spread_sum(chunk.unit), chunk.first_numel * grad_bytes_,
      chunk.numel * grad_bytes_);
}

bool DataFlow::holds_only_summand(SlotId slot, std::uint64_t offset, std::uint32_t chunk) const {
  const CheckChunk& c = input_.chunks[chunk];
  const std::uint64_t bytes = c.numel * grad_bytes_;
  return view_.summands() == 1 && program_.slots[slot].bytes >= offset + bytes &&
         holds(slot, offset, bytes, summand(c.unit, 0), c.first_numel * grad_bytes_);
}

void DataFlow::update(const Op& op) {
  if (!has_form(op, {AccessMode::update, AccessMode::read, AccessMode::write})) return;
  const CheckChunk& chunk = input_.chunks[op.chunk];
  need(op.accesses[0], "the state", {ValueKind::state, op.chunk, kBefore}, 0, chunk.state_bytes);
  put(op.accesses[0], "the new state", {ValueKind::state, op.chunk, kUpdated}, 0, chunk.state_bytes);
  const Access& sum = op.accesses[1];
  const std::uint64_t bytes = chunk.numel * sum_bytes();
  if (updates_forward(program_)) {
    need(sum, "the summed gradient", {ValueKind::pending_sum, op.chunk}, 0, bytes);
  } else if (view_.is_replicated()) {
    need(sum, "the summed gradient", spread_sum(chunk.unit), chunk.first_numel * grad_bytes_, bytes);
  } else if (sum.bytes < bytes || !holds_only_summand(sum.slot, sum.offset_bytes, op.chunk)) {
    need(sum, "the summed gradient", {ValueKind::sum, op.chunk, view_.summands()}, 0, bytes);
  }
  put_params(op.accesses[2], chunk, kUpdated);
}

void DataFlow::cast_param(const Op& op) {
  if (!has_form(op, {AccessMode::read, AccessMode::write})) return;
  const CheckChunk& chunk = input_.chunks[op.chunk];
  need(op.accesses[0], "the state", {ValueKind::state, op.chunk, kBefore}, 0, chunk.state_bytes);
  put_params(op.accesses[1], chunk, kBefore);
}

void DataFlow::put_params(const Access& access, const CheckChunk& chunk, std::uint32_t version) {
  const Item item = program_.slots[access.slot].item;
  if (item != Item::param_chunk && item != Item::piece) {
    report(Rule::operand, access.slot,
           fmt::format("{} writes parameters to {}", describe_op(program_, op_),
                       describe_slot(program_, access.slot)));
  }
  put(access, "the new parameters", {ValueKind::params, chunk.unit, version},
      chunk.first_numel * param_bytes_, chunk.numel * param_bytes_);
}

}  // namespace terrace::check_rules
