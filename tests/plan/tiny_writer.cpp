#include "tests/plan/tiny_writer.h"

#include <string>
#include <utility>

namespace terrace {
namespace {

CheckInput tiny_input(const TinyOptions& options) {
  CheckInput input;
  input.contributions = options.contributions;
  input.updates = options.updates;
  input.model.grad_dtype = options.grad_dtype;
  for (std::uint32_t u = 0; u < options.units; ++u) {
    const bool last = u + 1 == options.units;
    UnitShape unit;
    unit.name = "unit" + std::to_string(u);
    // One chunk, or two with padding at the end of the second.
    unit.tensors = {{unit.name + ".weight", u % 2 == 0 ? 2 * kChunkNumel - 100 : kChunkNumel, 0}};
    unit.output_bytes = last ? 0 : 640;
    unit.saved_bytes = last || u == 0 ? 0 : 2000;
    unit.forward_workspace_bytes = 300;
    unit.backward_workspace_bytes = 500;
    unit.forward_flops = 1e6;
    unit.backward_flops = 2e6;
    unit.backward_reads_params = u != 0;
    if (u > 0 && u + options.tied >= options.units) {
      unit.shared_units = {0};
      unit.shared_grad_bytes = 4 * kChunkNumel;
    }
    for (std::uint64_t at = 0; at < unit.padded_numel(); at += kChunkNumel) {
      const std::size_t c = input.chunks.size();
      input.chunks.push_back({u, at, kChunkNumel, options.state_homes[c % options.state_homes.size()],
                              options.param_homes[c % options.param_homes.size()], kStateBytes});
    }
    input.model.units.push_back(unit);
  }
  return input;
}

}  // namespace

TinyWriter::TinyWriter(const TinyOptions& options)
    : options_(options), input_(tiny_input(options)), builder_(0) {
  builder_.program.kind = options.kind;
  builder_.program.updates = options.updates;
  builder_.program.contributions = builder_.program.summands = options.contributions;
  for (std::uint32_t c = 0; c < input_.chunks.size(); ++c) {
    const CheckChunk& chunk = input_.chunks[c];
    param_home_.push_back(slot(chunk.param_home, Item::param_chunk, chunk.unit, c, 2 * chunk.numel, true));
    const Tier grads = options.grad_homes[c % options.grad_homes.size()];
    grad_home_.push_back(slot(grads, Item::grad_sum, chunk.unit, c, sum_bytes(), true));
    store_.push_back(slot(Tier::nvme, Item::state_chunk, chunk.unit, c, kStateBytes, true));
    state_home_.push_back(chunk.state_home == Tier::nvme
                              ? store_.back()
                              : slot(chunk.state_home, Item::state_chunk, chunk.unit, c, kStateBytes, true));
  }
  const bool train = options.kind == ProgramKind::train || options.kind == ProgramKind::train_commit;
  carried_in_ = carried(train || options.kind == ProgramKind::drain, Carry::in);
  carried_out_ = carried(train, Carry::out);
}

SlotId TinyWriter::slot(Tier tier, Item item, std::uint32_t unit, std::uint32_t chunk, std::uint64_t bytes,
                        bool resident) {
  const SlotId id = builder_.slot(tier, 0, bytes, resident, item);
  builder_.program.slots[id].unit = unit;
  builder_.program.slots[id].chunk = chunk;
  return id;
}

std::vector<SlotId> TinyWriter::carried(bool any, Carry carry) {
  std::vector<SlotId> slots(input_.chunks.size(), kNone);
  std::uint32_t left = any ? options_.carried : 0;
  for (std::uint32_t c = 0; c < slots.size() && left > 0; ++c) {
    const Tier home = input_.chunks[c].state_home;
    if (home == Tier::host || (home == Tier::device && !updates_forward())) continue;
    slots[c] = slot(Tier::host, Item::state_chunk, input_.chunks[c].unit, c, kStateBytes);
    builder_.program.slots[slots[c]].carry = carry;
    --left;
  }
  return slots;
}

Op TinyWriter::make(OpKind kind, Lane lane, std::uint32_t unit, std::uint32_t chunk,
                    std::vector<Access> accesses) {
  Op op;
  op.kind = kind;
  op.lane = lane;
  op.unit = unit;
  op.chunk = chunk;
  op.micro_batch = micro_batch_;
  op.accesses = std::move(accesses);
  return op;
}

void TinyWriter::move(Access from, Access to, Item item, bool predicated) {
  from.mode = AccessMode::read;
  to.mode = AccessMode::write;
  const Tier source = tier_of(from.slot);
  const Tier target = tier_of(to.slot);
  OpKind kind = OpKind::copy_to_host;
  Lane lane = Lane::d2h;
  if (source == Tier::nvme || target == Tier::nvme) {
    const bool reads = source == Tier::nvme;
    lane = item == Item::state_chunk ? Lane::store : Lane::nvme;
    if (item == Item::state_chunk) kind = reads ? OpKind::read_state : OpKind::write_state;
    if (item == Item::param_chunk) kind = reads ? OpKind::read_param : OpKind::write_param;
    if (item == Item::grad_sum) kind = reads ? OpKind::read_gradient : OpKind::write_gradient;
    if (item == Item::activation) kind = reads ? OpKind::read_activation : OpKind::write_activation;
  } else if (target == Tier::device) {
    kind = OpKind::copy_to_device;
    lane = Lane::h2d;
  }
  if (kind == OpKind::write_state) from.mode = AccessMode::update;
  const Slot& labelled = builder_.program.slots[from.slot];
  Op op = make(kind, lane, labelled.unit, labelled.chunk, {from, to});
  op.predicated = predicated;
  op.bytes = from.bytes;
  builder_.add(op);
}

SlotId TinyWriter::to_host(SlotId home, Item item, bool predicated) {
  if (tier_of(home) == Tier::host) return home;
  const Slot labelled = builder_.program.slots[home];
  const SlotId staged = slot(Tier::host, item, labelled.unit, labelled.chunk, labelled.bytes);
  move(builder_.read(home), builder_.write(staged), item, predicated);
  return staged;
}

void TinyWriter::from_host(SlotId staged, SlotId home, Item item, bool predicated) {
  if (staged != home) move(builder_.read(staged), builder_.write(home), item, predicated);
}

SlotId TinyWriter::gather(std::uint32_t unit) {
  const SlotId piece = slot(Tier::device, Item::piece, unit, kNone, 2 * shape(unit).padded_numel());
  for (std::uint32_t c = 0; c < input_.chunks.size(); ++c) {
    const CheckChunk& chunk = input_.chunks[c];
    if (chunk.unit != unit) continue;
    SlotId source = param_home_[c];
    if (tier_of(source) == Tier::nvme) source = to_host(source, Item::param_chunk);
    const Access target{piece, AccessMode::write, Role::none, 2 * chunk.first_numel, 2 * chunk.numel};
    move(builder_.read(source), target, Item::param_chunk);
  }
  return piece;
}

Op TinyWriter::compute(OpKind kind, std::uint32_t unit, SlotId input) {
  Op op = make(kind, Lane::compute, unit, kNone, {});
  if (kind != OpKind::backward || shape(unit).backward_reads_params) {
    op.accesses.push_back(builder_.whole(gather(unit), AccessMode::read, Role::params));
    for (const std::uint32_t shared : shape(unit).shared_units) {
      op.accesses.push_back(builder_.whole(gather(shared), AccessMode::read, Role::shared_params));
    }
  }
  if (input != kNone) op.accesses.push_back(builder_.whole(input, AccessMode::read, Role::input));
  const std::uint64_t workspace =
      kind == OpKind::backward ? shape(unit).backward_workspace_bytes : shape(unit).forward_workspace_bytes;
  op.accesses.push_back(builder_.whole(slot(Tier::device, Item::workspace, unit, kNone, workspace),
                                       AccessMode::update, Role::workspace));
  return op;
}

SlotId TinyWriter::add_output(Op& op, Item item, std::uint32_t unit, std::uint64_t bytes, Role role) {
  const SlotId made = slot(Tier::device, item, unit, kNone, bytes);
  op.accesses.push_back(builder_.whole(made, AccessMode::write, role));
  return made;
}

void TinyWriter::forward(std::uint32_t unit) {
  Op op = compute(OpKind::forward, unit, unit == 0 ? kNone : outputs_[unit - 1]);
  const bool last = unit + 1 == units();
  if (!last) outputs_[unit] = add_output(op, Item::activation, unit, shape(unit).output_bytes, Role::output);
  const bool keeps = shape(unit).saved_bytes > 0 && !options_.recompute && options_.kind != ProgramKind::eval;
  if (keeps) saved_[unit] = add_output(op, Item::saved, unit, shape(unit).saved_bytes, Role::saved);
  builder_.add(op);
}

void TinyWriter::backward(std::uint32_t unit) {
  const bool last = unit + 1 == units();
  const SlotId input = unit == 0 ? kNone : outputs_[unit - 1];
  if (options_.recompute && shape(unit).saved_bytes > 0) {
    Op op = compute(OpKind::recompute, unit, input);
    saved_[unit] = add_output(op, Item::saved, unit, shape(unit).saved_bytes, Role::saved);
    builder_.add(op);
  }
  Op op = compute(OpKind::backward, unit, input);
  if (!last) op.accesses.push_back(builder_.whole(output_grad_, AccessMode::read, Role::output_grad));
  if (shape(unit).saved_bytes > 0)
    op.accesses.push_back(builder_.whole(saved_[unit], AccessMode::read, Role::saved));
  if (unit > 0) {
    output_grad_ =
        add_output(op, Item::activation_grad, unit - 1, shape(unit - 1).output_bytes, Role::input_grad);
  }
  if (shape(unit).shared_grad_bytes > 0 && last) {
    shared_grad_ = add_output(op, Item::shared_grad, 0, shape(unit).shared_grad_bytes, Role::shared_grad);
  } else if (shape(unit).shared_grad_bytes > 0) {
    op.accesses.push_back(builder_.whole(shared_grad_, AccessMode::update, Role::shared_grad));
  } else if (unit == 0 && options_.tied > 0) {
    op.accesses.push_back(builder_.whole(shared_grad_, AccessMode::read, Role::shared_grad));
  }
  const SlotId grads =
      add_output(op, Item::contribution, unit, grad_bytes() * shape(unit).padded_numel(), Role::grads);
  builder_.add(op);
  for (std::uint32_t c = 0; c < input_.chunks.size(); ++c) {
    if (input_.chunks[c].unit == unit) fold(c, grads);
  }
}

void TinyWriter::fold(std::uint32_t c, SlotId grads) {
  const CheckChunk& chunk = input_.chunks[c];
  const Access slice{grads, AccessMode::read, Role::none, grad_bytes() * chunk.first_numel,
                     grad_bytes() * chunk.numel};
  const AccessMode mode = micro_batch_ == 0 ? AccessMode::write : AccessMode::update;
  const SlotId home = grad_home_[c];
  if (tier_of(home) == Tier::device) {
    builder_.add(make(OpKind::fold, Lane::compute, chunk.unit, c, {slice, builder_.whole(home, mode)}));
    return;
  }
  SlotId sum = home;
  if (tier_of(home) == Tier::nvme) {
    sum = micro_batch_ == 0 ? slot(Tier::host, Item::grad_sum, chunk.unit, c, sum_bytes())
                            : to_host(home, Item::grad_sum);
  }
  if (options_.contributions == 1) {
    move(slice, builder_.write(sum), Item::grad_sum);
    builder_.add(make(OpKind::fold, Lane::optimizer, chunk.unit, c, {builder_.read(sum)}));
  } else {
    const SlotId staged = slot(Tier::host, Item::grad_chunk, chunk.unit, c, slice.bytes);
    move(slice, builder_.write(staged), Item::grad_chunk);
    builder_.add(make(OpKind::fold, Lane::optimizer, chunk.unit, c,
                      {builder_.read(staged), builder_.whole(sum, mode)}));
  }
  from_host(sum, home, Item::grad_sum);
}

}  // namespace terrace
