// Pieces, forward and backward.
#include <algorithm>

#include "src/base/fail.h"
#include "src/plan/compiler.h"

namespace terrace {

SlotId Compiler::piece_of(std::uint32_t unit) const {
  return residents_.piece_home[unit] != kNone ? residents_.piece_home[unit] : live_pieces_[unit].slot;
}

// The bytes of a chunk's parameters in their home.
Access Compiler::param_home(std::uint32_t chunk, AccessMode mode) const {
  const Chunk& part = chunks_[chunk];
  const std::uint64_t element = dtype_bytes(model_.param_dtype);
  const SlotId piece = residents_.piece_home[part.unit];
  if (piece != kNone) return {piece, mode, Role::none, part.begin * element, part.numel * element};
  return {residents_.param_home[chunk], mode, Role::none, 0, part.numel * element};
}

// Gathers what `visit` needs and, where room is left, what the next visits need, in their order.
void Compiler::fetch_pieces(std::size_t visit) {
  for (; next_need_ < needs_.size(); ++next_need_) {
    const PieceNeed& need = needs_[next_need_];
    const bool demanded = need.visit <= visit;
    if (!demanded && !ahead_) return;
    const std::uint64_t bytes = model_.units[need.unit].padded_numel() * dtype_bytes(model_.param_dtype);
    if (bytes == 0) continue;
    if (residents_.piece_home[need.unit] != kNone) {
      if (!renews(need.unit)) continue;
      constexpr std::size_t kRenewedAhead =
          2;  // visits: further on compute would wait for what it needs later
      if (need.visit > visit + kRenewedAhead) return;
      if (!updates_in_backward()) update_units(need.unit);
      renew(need.unit, residents_.piece_home[need.unit]);
      continue;
    }
    LivePiece& live = live_pieces_[need.unit];
    if (live.slot == kNone) {
      live.slot = demanded ? slot(Pool::piece, Item::piece, need.unit, kNone, bytes)
                           : try_slot(Pool::piece, Item::piece, need.unit, kNone, bytes);
      if (live.slot == kNone) return;
      if (!updates_in_backward() && kind_ != ProgramKind::eval) update_units(need.unit);
      // Without a contribution there is nothing to do with a piece that others do not wait for; its slot is
      // taken all the same, so that ranks find room for the next at one time.
      const bool alone = ranks_.keeps_whole(need.unit) && !renews(need.unit);
      if (visits_[need.visit].present || !alone) gather(need.unit, live.slot);
    }
    live.last_visit = need.visit;
  }
}

void Compiler::gather(std::uint32_t unit, SlotId piece) {
  if (renews(unit)) return renew(unit, piece);
  load_chunks(unit, piece, kept_chunks_[unit]);
  if (ranks_.keeps_whole(unit)) return;
  all_gather(RankGroup::shard, unit, piece, dtype_bytes(model_.param_dtype), ranks_.shard_range(unit, rank_),
             {0, model_.units[unit].padded_numel()});
}

// Copies chunks that this rank keeps into their places.
void Compiler::load_chunks(std::uint32_t unit, SlotId piece, const std::vector<std::uint32_t>& chunks) {
  const std::uint64_t element = dtype_bytes(model_.param_dtype);
  for (const std::uint32_t c : chunks) {
    const Chunk& chunk = chunks_[c];
    const Access target{piece, AccessMode::write, Role::none, chunk.begin * element, chunk.numel * element};
    if (placement_.parameters[c] != Tier::nvme) {
      transfer(OpKind::copy_to_device, Lane::h2d, param_home(c, AccessMode::read), target, unit, c);
      continue;
    }
    const SlotId staged = slot(Pool::param_staging, Item::param_chunk, unit, c, chunk.numel * element);
    transfer(OpKind::read_param, Lane::nvme, param_home(c, AccessMode::read),
             whole(staged, AccessMode::write), unit, c);
    transfer(OpKind::copy_to_device, Lane::h2d, whole(staged, AccessMode::read), target, unit, c);
    release(Pool::param_staging, staged);
  }
}

// This rank's range `mine` of a slot to the others of the group, and theirs, which with it make up `whole`,
// to this rank. Ranges are of the unit's flat parameter, elements of `element` bytes.
void Compiler::all_gather(RankGroup group, std::uint32_t unit, SlotId slot, std::uint64_t element,
                          NumelRange mine, NumelRange whole) {
  const auto& shape = ranks_.shape();
  const std::uint32_t size = group == RankGroup::shard ? shape.shard_size() : shape.replicate_size();
  if (size == 1) return;
  const auto access = [&](std::uint64_t begin, std::uint64_t end, AccessMode mode, Role role) {
    return Access{slot, mode, role, begin * element, (end - begin) * element};
  };
  Op op;
  op.kind = OpKind::all_gather;
  op.lane = Lane::collective;
  op.group = group;
  op.unit = unit;
  op.micro_batch = micro_batch_;
  op.bytes = mine.numel() * element * (size - 1);
  op.accesses.push_back(access(mine.begin, mine.end, AccessMode::read, Role::mine));
  if (mine.begin > whole.begin)
    op.accesses.push_back(access(whole.begin, mine.begin, AccessMode::write, Role::others));
  if (mine.end < whole.end)
    op.accesses.push_back(access(mine.end, whole.end, AccessMode::write, Role::others));
  emitter_.emit(std::move(op));
}

// Every rank keeps the unit whole, and what other ranks update of it is not yet this step's.
bool Compiler::renews(std::uint32_t unit) const {
  return !renewed_[unit] && kind_ != ProgramKind::eval;
}

// Gathers a unit's new parameters into its piece and brings the others' to their homes on this rank.
void Compiler::renew(std::uint32_t unit, SlotId piece) {
  renewed_[unit] = true;
  const std::uint64_t element = dtype_bytes(model_.param_dtype);
  const bool at_home = residents_.piece_home[unit] != kNone;
  std::vector<std::uint32_t> held, foreign;
  for (const std::uint32_t c : kept_chunks_[unit]) (ranks_.holds(rank_, c) ? held : foreign).push_back(c);
  if (!at_home) load_chunks(unit, piece, held);
  all_gather(RankGroup::shard, unit, piece, element, ranks_.shard_range(unit, rank_),
             {0, model_.units[unit].padded_numel()});
  if (at_home) return;
  for (const std::uint32_t c : foreign) {
    const Chunk& chunk = chunks_[c];
    const Access source{piece, AccessMode::read, Role::none, chunk.begin * element, chunk.numel * element};
    const Access home = param_home(c, AccessMode::write);
    const Tier tier = placement_.parameters[c];
    if (tier != Tier::nvme) {
      const bool device = tier == Tier::device;
      transfer(device ? OpKind::copy_to_device : OpKind::copy_to_host, device ? Lane::h2d : Lane::d2h, source,
               home, unit, c);
      continue;
    }
    const SlotId staged = slot(Pool::param_staging, Item::param_chunk, unit, c, home.bytes);
    transfer(OpKind::copy_to_host, Lane::d2h, source, whole(staged, AccessMode::write), unit, c);
    transfer(OpKind::write_param, Lane::nvme, whole(staged, AccessMode::read), home, unit, c);
    release(Pool::param_staging, staged);
  }
}

// Between steps: what no forward is there to renew.
void Compiler::renew_all() {
  for (std::uint32_t u = 0; u < model_.units.size(); ++u) {
    const std::uint64_t bytes = model_.units[u].padded_numel() * dtype_bytes(model_.param_dtype);
    if (bytes == 0 || !renews(u)) continue;
    const SlotId home = residents_.piece_home[u];
    const SlotId piece = home != kNone ? home : slot(Pool::piece, Item::piece, u, kNone, bytes);
    renew(u, piece);
    if (home == kNone) release(Pool::piece, piece);
  }
}

void Compiler::release_pieces(std::size_t visit) {
  for (LivePiece& live : live_pieces_) {
    if (live.slot == kNone || live.last_visit > visit) continue;
    release(Pool::piece, live.slot);
    live.slot = kNone;
  }
}

void Compiler::add_pieces(Op& op, const UnitShape& unit) {
  if (op.kind == OpKind::backward && !unit.backward_reads_params) return;
  if (piece_of(op.unit) != kNone)
    op.accesses.push_back(whole(piece_of(op.unit), AccessMode::read, Role::params));
  check(unit.shared_units.size() <= 1, "unit {} shares more than one piece", unit.name);
  for (const std::uint32_t shared : unit.shared_units) {
    op.accesses.push_back(whole(piece_of(shared), AccessMode::read, Role::shared_params));
  }
}

void Compiler::add_workspace(Op& op, std::uint64_t bytes) {
  if (bytes == 0) return;
  const SlotId work = slot(Pool::workspace, Item::workspace, op.unit, kNone, bytes);
  op.accesses.push_back(whole(work, AccessMode::update, Role::workspace));
  release(Pool::workspace, work);
}

void Compiler::forward(std::size_t visit) {
  const std::uint32_t u = visits_[visit].unit;
  const UnitShape& unit = model_.units[u];
  Op op;
  op.kind = OpKind::forward;
  op.lane = Lane::compute;
  op.unit = u;
  op.micro_batch = micro_batch_;
  op.flops = unit.forward_flops;
  add_pieces(op, unit);
  if (u > 0 && outputs_[u - 1] != kNone)
    op.accesses.push_back(whole(outputs_[u - 1], AccessMode::read, Role::input));
  if (unit.output_bytes > 0) {
    outputs_[u] = slot(Pool::activation, Item::activation, u, kNone, unit.output_bytes);
    op.accesses.push_back(whole(outputs_[u], AccessMode::write, Role::output));
  }
  if (unit.saved_bytes > 0 && u + 1 < model_.units.size()) {
    saved_[u] = slot(Pool::activation, Item::saved, u, kNone, unit.saved_bytes);
    op.accesses.push_back(whole(saved_[u], AccessMode::write, Role::saved));
  }
  add_workspace(op, unit.forward_workspace_bytes);
  emitter_.emit(std::move(op));

  const bool eval = kind_ == ProgramKind::eval;
  if (saved_[u] != kNone && (eval || placement_.recompute[u])) {
    release(Pool::activation, saved_[u]);
    saved_[u] = kNone;
  }
  if (u > 0 && outputs_[u - 1] != kNone && (eval || residents_.activation_home[u - 1] != kNone)) {
    release(Pool::activation, outputs_[u - 1]);
    outputs_[u - 1] = kNone;
  }
  if (!eval && residents_.activation_home[u] != kNone) offload_activation(u);
}

void Compiler::offload_activation(std::uint32_t unit) {
  const SlotId home = residents_.activation_home[unit];
  const Access source = whole(outputs_[unit], AccessMode::read);
  if (placement_.activations[unit] == Tier::host) {
    transfer(OpKind::copy_to_host, Lane::d2h, source, whole(home, AccessMode::write), unit, kNone);
    return;
  }
  const SlotId staged = slot(Pool::activation_staging, Item::activation, unit, kNone, source.bytes);
  transfer(OpKind::copy_to_host, Lane::d2h, source, whole(staged, AccessMode::write), unit, kNone);
  transfer(OpKind::write_activation, Lane::nvme, whole(staged, AccessMode::read),
           whole(home, AccessMode::write), unit, kNone);
  release(Pool::activation_staging, staged);
}

// Brings back the outputs that backward needs, down to the input of unit `consumer` and, where room is left,
// further.
void Compiler::fetch_activations(std::uint32_t consumer) {
  for (; next_fetched_ > 0; --next_fetched_) {
    const std::uint32_t unit = next_fetched_ - 1;
    const bool demanded = unit + 1 >= consumer;
    if (!demanded && !ahead_) return;
    const SlotId home = residents_.activation_home[unit];
    if (home == kNone) continue;
    const std::uint64_t bytes = model_.units[unit].output_bytes;
    const SlotId target = demanded ? slot(Pool::fetched_activation, Item::activation, unit, kNone, bytes)
                                   : try_slot(Pool::fetched_activation, Item::activation, unit, kNone, bytes);
    if (target == kNone) return;
    fetched_[unit] = target;
    Access source = whole(home, AccessMode::read);
    SlotId staged = kNone;
    if (placement_.activations[unit] == Tier::nvme) {
      staged = slot(Pool::activation_staging, Item::activation, unit, kNone, bytes);
      transfer(OpKind::read_activation, Lane::nvme, source, whole(staged, AccessMode::write), unit, kNone);
      source = whole(staged, AccessMode::read);
    }
    transfer(OpKind::copy_to_device, Lane::h2d, source, whole(target, AccessMode::write), unit, kNone);
    if (staged != kNone) release(Pool::activation_staging, staged);
  }
}

// Returns the slot of the unit's contribution.
SlotId Compiler::backward(std::size_t visit) {
  const std::uint32_t u = visits_[visit].unit;
  const UnitShape& unit = model_.units[u];
  const bool last = u + 1 == model_.units.size();
  if (last) next_fetched_ = u - 1;  // the last activation is still on the device
  fetch_activations(u);

  const SlotId input = u == 0 ? kNone : (fetched_[u - 1] != kNone ? fetched_[u - 1] : outputs_[u - 1]);
  if (placement_.recompute[u] && unit.saved_bytes > 0 && !last) {
    saved_[u] = slot(Pool::activation, Item::saved, u, kNone, unit.saved_bytes);
    Op op;
    op.kind = OpKind::recompute;
    op.lane = Lane::compute;
    op.unit = u;
    op.micro_batch = micro_batch_;
    op.flops = unit.forward_flops;
    add_pieces(op, unit);
    if (input != kNone) op.accesses.push_back(whole(input, AccessMode::read, Role::input));
    op.accesses.push_back(whole(saved_[u], AccessMode::write, Role::saved));
    add_workspace(op, unit.forward_workspace_bytes);
    emitter_.emit(std::move(op));
  }

  Op op;
  op.kind = OpKind::backward;
  op.lane = Lane::compute;
  op.unit = u;
  op.micro_batch = micro_batch_;
  op.flops = unit.backward_flops + (last ? unit.forward_flops : 0);
  add_pieces(op, unit);
  SlotId input_grad = kNone;
  if (input != kNone) {
    op.accesses.push_back(whole(input, AccessMode::read, Role::input));
    input_grad =
        slot(Pool::activation, Item::activation_grad, u - 1, kNone, model_.units[u - 1].output_bytes);
    op.accesses.push_back(whole(input_grad, AccessMode::write, Role::input_grad));
  }
  if (saved_[u] != kNone) op.accesses.push_back(whole(saved_[u], AccessMode::read, Role::saved));
  if (output_grad_ != kNone) op.accesses.push_back(whole(output_grad_, AccessMode::read, Role::output_grad));
  if (unit.shared_grad_bytes > 0) {
    SlotId& shared = shared_grads_[unit.shared_units.at(0)];
    shared = slot(Pool::activation, Item::shared_grad, unit.shared_units[0], kNone, unit.shared_grad_bytes);
    op.accesses.push_back(whole(shared, AccessMode::write, Role::shared_grad));
  } else if (shared_grads_[u] != kNone) {
    op.accesses.push_back(whole(shared_grads_[u], AccessMode::update, Role::shared_grad));
  }
  SlotId grads = kNone;
  if (unit.numel() > 0) {
    grads = slot(Pool::contribution, Item::contribution, u, kNone,
                 unit.padded_numel() * dtype_bytes(model_.grad_dtype));
    op.accesses.push_back(whole(grads, AccessMode::write, Role::grads));
  }
  add_workspace(op, unit.backward_workspace_bytes);
  emitter_.emit(std::move(op));

  if (saved_[u] != kNone) release(Pool::activation, saved_[u]);
  saved_[u] = kNone;
  if (output_grad_ != kNone) release(Pool::activation, output_grad_);
  output_grad_ = input_grad;
  if (unit.shared_grad_bytes == 0 && shared_grads_[u] != kNone) {
    release(Pool::activation, shared_grads_[u]);
    shared_grads_[u] = kNone;
  }
  if (input != kNone) {
    release(fetched_[u - 1] != kNone ? Pool::fetched_activation : Pool::activation, input);
    fetched_[u - 1] = kNone;
    outputs_[u - 1] = kNone;
  }
  return grads;
}

}  // namespace terrace
