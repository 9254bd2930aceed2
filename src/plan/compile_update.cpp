// States and updates of a step: what comes in, what crosses the border of the program, what goes back.
#include <algorithm>

#include "src/base/fail.h"
#include "src/plan/compiler.h"

namespace terrace {

// next_forward: as forward uses them. backward: as backward finishes them.
void Compiler::list_updates() {
  for (std::size_t i = 0; i < unit_chunks_.size(); ++i) {
    const std::size_t unit = updates_in_backward() && is_periodic() ? unit_chunks_.size() - 1 - i : i;
    update_order_.insert(update_order_.end(), unit_chunks_[unit].begin(), unit_chunks_[unit].end());
  }
}

// next_forward: states needed first, fetched in the step before. backward: states updated last, written in
// the step after. As many as the pool holds, from its start.
void Compiler::list_carried() {
  carried_at_.assign(chunks_.size(), kNone);
  const SlotPool& pool = pools_[static_cast<std::size_t>(Pool::state_staging)];
  if (measuring_ || !ahead_) return;
  std::vector<std::uint32_t> order;
  for (std::size_t u = 0; u < unit_chunks_.size(); ++u)
    order.insert(order.end(), unit_chunks_[u].begin(), unit_chunks_[u].end());
  if (updates_in_backward()) {  // the last updated first: the chunks of unit 0 from its end
    std::vector<std::uint32_t> backward;
    for (const auto& chunks : unit_chunks_) backward.insert(backward.end(), chunks.rbegin(), chunks.rend());
    order = std::move(backward);
  }
  std::uint64_t used = 0, largest = 0;
  const auto bytes_of = [&](std::uint32_t c) { return SlotPool::slot_bytes(state_slot_bytes(chunks_[c])); };
  for (const std::uint32_t c : order) {
    if (placement_.optimizer_state[c] != Tier::nvme) continue;
    largest = std::max(largest, bytes_of(c));
    if (used + bytes_of(c) > pool.bytes()) break;
    carried_.push_back({c});
    used += bytes_of(c);
  }
  if (!is_periodic()) carried_.clear();
  if (updates_in_backward()) std::reverse(carried_.begin(), carried_.end());
  std::uint64_t next = pool.base();
  for (Carried& carried : carried_) {
    carried_at_[carried.chunk] = static_cast<std::uint32_t>(&carried - carried_.data());
    carried.offset_bytes = next;
    next += bytes_of(carried.chunk);
  }
  if (largest > 0) kept_states_ = std::max<std::uint64_t>(1, pool.bytes() / largest / 3);
}

// What the step before left, in its place.
void Compiler::take_carried() {
  for (Carried& carried : carried_) {
    const Chunk& chunk = chunks_[carried.chunk];
    Slot in =
        slot_of(Pool::state_staging, Item::state_chunk, chunk.unit, carried.chunk, state_slot_bytes(chunk));
    in.carry = Carry::in;
    in.offset_bytes = carried.offset_bytes;
    check(pools_[static_cast<std::size_t>(Pool::state_staging)].take_at(in.offset_bytes, in.bytes),
          "a carried slot's place is taken");
    states_[carried.chunk] = emitter_.add_slot(in);
  }
}

// Brings a chunk's state into host memory; false when there is no room.
bool Compiler::fetch_state(std::uint32_t c, Carry carry, bool predicated) {
  const std::uint32_t unit = chunks_[c].unit;
  const Tier tier = placement_.optimizer_state[c];
  SlotId state = residents_.state_home[c];
  if (tier != Tier::host) {
    const std::uint64_t bytes = state_slot_bytes(chunks_[c]);
    if (carry == Carry::none) {
      state = try_slot(Pool::state_staging, Item::state_chunk, unit, c, bytes);
      if (state == kNone) return false;
    } else {
      Slot out = slot_of(Pool::state_staging, Item::state_chunk, unit, c, bytes);
      out.carry = carry;
      out.offset_bytes = carried_[carried_at_[c]].offset_bytes;
      if (!pools_[static_cast<std::size_t>(Pool::state_staging)].take_at(out.offset_bytes, bytes))
        return false;
      state = emitter_.add_slot(out);
    }
  }
  states_[c] = state;
  const Access target = whole(state, AccessMode::write);
  if (kind_ == ProgramKind::materialize || tier == Tier::nvme) {
    const bool copied = kind_ != ProgramKind::materialize && residents_.state_copy[c] != kNone;
    const SlotId extent = copied ? residents_.state_copy[c] : residents_.store_extent[c];
    if (extent != kNone) {
      transfer(OpKind::read_state, Lane::store, whole(extent, AccessMode::read), target, unit, c, predicated);
    } else {
      Op op;
      op.kind = OpKind::read_state;
      op.lane = Lane::store;
      op.unit = unit;
      op.chunk = c;
      op.accesses = {target};
      emitter_.emit(std::move(op));
    }
  } else if (tier == Tier::device) {
    transfer(OpKind::copy_to_host, Lane::d2h, whole(residents_.state_home[c], AccessMode::read), target, unit,
             c, predicated);
  }
  return true;
}

// For this program's own use.
bool Compiler::fetch_own(std::uint32_t c) {
  const bool pending = !updates_in_backward() && is_periodic();
  // A commit writes a state of the device though nothing was pending.
  const bool kept =
      kind_ == ProgramKind::train_commit && placement_.optimizer_state[c] == Tier::device && owns(c);
  return fetch_state(c, updates_in_backward() && carries(c) ? Carry::out : Carry::none, pending && !kept);
}

// Fetches the first `needed` chunks' states in the order of updates and, where room is left, more, but none
// beyond `most_bytes` ahead.
void Compiler::fetch_states(std::size_t needed, std::uint64_t most_bytes) {
  for (; next_state_ < update_order_.size(); ++next_state_) {
    const std::uint32_t c = update_order_[next_state_];
    const bool demanded = next_state_ < needed;
    if (!demanded && !ahead_) return;
    if (states_[c] != kNone) continue;  // carried
    const std::uint64_t bytes =
        placement_.optimizer_state[c] == Tier::host ? 0 : state_slot_bytes(chunks_[c]);
    if (!demanded && ahead_bytes_ + bytes > most_bytes) return;
    if (!fetch_own(c)) {
      if (!demanded) return;
      release_retired();
      if (!fetch_own(c)) {
        fail(ErrorCode::does_not_fit, "{}: no room for chunk {}", name_of(Pool::state_staging), c);
      }
    }
    ahead_bytes_ += bytes;
  }
}

// The part of the compute in visits [first, end) that is done when `visit` has ended.
double Compiler::share_done(std::size_t first, std::size_t visit, std::size_t end) const {
  const double all = flops_before_[end] - flops_before_[first];
  return all > 0 ? (flops_before_[visit + 1] - flops_before_[first]) / all : 1;
}

// Fetches states ahead as far as slots allow, spread over the compute before they are needed, so that what
// compute itself needs from the disk does not queue behind them.
void Compiler::fetch_next_states(std::size_t visit) {
  if (!ahead_) return;
  const std::uint64_t pool_bytes = pools_[static_cast<std::size_t>(Pool::state_staging)].bytes();
  const std::size_t units = model_.units.size();
  if (updates_in_backward()) {
    const std::size_t end = visits_.size() - units;
    if (visit >= end) return fetch_states(0);
    return fetch_states(
        0, static_cast<std::uint64_t>(share_done(0, visit, end) * static_cast<double>(pool_bytes)));
  }
  const std::size_t first = units - 1;  // the first backward
  if (visit < first || carried_.empty()) return;
  if (next_carried_.empty() && carried_out_ == 0) {  // places used last wait longest for their writes
    next_carried_ = carried_;
    std::stable_sort(next_carried_.begin(), next_carried_.end(),
                     [](const Carried& a, const Carried& b) { return a.last_use < b.last_use; });
  }
  const double share = share_done(first, visit, visits_.size());
  const auto wanted = static_cast<std::size_t>(share * static_cast<double>(carried_.size()) + 0.5);
  for (; carried_out_ < std::min(wanted, carried_.size()); ++carried_out_) {
    const std::uint32_t c = next_carried_[carried_out_].chunk;
    if (fetch_state(c, Carry::out, false)) continue;
    release_retired();
    check(fetch_state(c, Carry::out, false), "a carried slot's place is not free");
  }
}

// Emits `op`, whose last operand is the chunk's new 16-bit parameters, and brings these to their home.
void Compiler::parameters_out(std::uint32_t c, Op op, bool predicated) {
  const Tier tier = placement_.parameters[c];
  const Access home = param_home(c, AccessMode::write);
  if (tier == Tier::host) {
    op.accesses.push_back(home);
    emitter_.emit(std::move(op));
    return;
  }
  const std::uint32_t unit = op.unit;
  const SlotId staged = slot(Pool::param_staging, Item::param_chunk, unit, c, home.bytes);
  op.accesses.push_back(whole(staged, AccessMode::write));
  emitter_.emit(std::move(op));
  const bool on_disk = tier == Tier::nvme;
  transfer(on_disk ? OpKind::write_param : OpKind::copy_to_device, on_disk ? Lane::nvme : Lane::h2d,
           whole(staged, AccessMode::read), home, unit, c, predicated);
  release(Pool::param_staging, staged);
}

// next_forward: the pending updates of all units up to `unit`.
void Compiler::update_units(std::uint32_t unit) {
  while (next_update_ < update_order_.size() && chunks_[update_order_[next_update_]].unit <= unit) {
    const std::uint32_t c = update_order_[next_update_];
    const bool staged = placement_.gradients[c] != Tier::host;
    const SlotId sum = staged ? staged_sum(c) : residents_.grad_home[c];
    age_retired();
    update_chunk(c, sum);
    release_sum(c);
  }
  // At one place in the order of collectives on every rank, whatever chunks it holds.
  const bool all = unit + 1 >= model_.units.size();
  if (all && kind_ == ProgramKind::train_commit && commit_ == kNone) commit_step();
}

// The next of update_order_.
void Compiler::update_chunk(std::uint32_t c, SlotId sum) {
  fetch_states(++next_update_);
  check(update_order_[next_update_ - 1] == c, "chunk {} is updated out of order", c);
  Op op;
  op.kind = OpKind::update;
  op.lane = Lane::optimizer;
  op.predicated = !updates_in_backward();
  op.unit = chunks_[c].unit;
  op.chunk = c;
  op.micro_batch = micro_batch_;
  op.bytes = chunks_[c].numel * 28;
  if (commit_ != kNone) op.waits = {commit_};
  op.accesses = {whole(states_[c], AccessMode::update), whole(sum, AccessMode::read)};
  const bool predicated = op.predicated;
  parameters_out(c, std::move(op), predicated);

  const Tier tier = placement_.optimizer_state[c];
  if (tier == Tier::device) {
    transfer(OpKind::copy_to_device, Lane::h2d, whole(states_[c], AccessMode::read),
             whole(residents_.state_home[c], AccessMode::write), chunks_[c].unit, c, predicated);
  }
  if (updates_in_backward() && carries(c)) return;  // written in the next step
  // What lives on disk is written after every update that happened; a commit also writes what lives in
  // memory, updated or not, since earlier steps may have changed it.
  if (tier == Tier::nvme) {
    write_state(c, predicated);
  } else if (kind_ == ProgramKind::train_commit && !updates_in_backward() && owns(c)) {
    write_state(c, false);
  }
  if (tier != Tier::host) release_state(c);
}

// To the store; a replica's copy of another rank's chunk to its scratch extent, which no commit waits for.
void Compiler::write_state(std::uint32_t c, bool predicated) {
  const SlotId extent = owns(c) ? residents_.store_extent[c] : residents_.state_copy[c];
  const OpId write = transfer(OpKind::write_state, Lane::store, whole(states_[c], AccessMode::update),
                              whole(extent, AccessMode::write), chunks_[c].unit, c, predicated);
  if (owns(c)) written_.push_back(write);
}

void Compiler::release_state(std::uint32_t c) {
  const Slot& slot = emitter_.slot(states_[c]);
  const auto ends_before = [&](const Carried& carried) {
    return carried.offset_bytes + state_slot_bytes(chunks_[carried.chunk]) <= slot.offset_bytes;
  };
  auto carried = std::partition_point(carried_.begin(), carried_.end(), ends_before);
  for (; carried != carried_.end() && carried->offset_bytes < slot.offset_bytes + slot.bytes; ++carried)
    carried->last_use = emitter_.ops().size();
  retire(Pool::state_staging, states_[c]);
  states_[c] = kNone;
}

// backward: what the step before left unwritten, and its commit.
void Compiler::write_pending() {
  for (const Carried& carried : carried_) {
    age_retired();
    write_state(carried.chunk, true);
    release_state(carried.chunk);
  }
  if (kind_ == ProgramKind::train_commit) {
    write_states_in_memory();
    commit_step();
  }
}

// Writes the states that live in memory, each by its owner.
void Compiler::write_states_in_memory() {
  for (std::uint32_t c = 0; c < chunks_.size(); ++c) {
    // What has never changed is in the store as it was, written or not.
    if (placement_.optimizer_state[c] == Tier::nvme || !owns(c) || chunks_[c].master_only) continue;
    age_retired();
    if (!fetch_state(c, Carry::none, false)) {
      release_retired();
      if (!fetch_state(c, Carry::none, false))
        fail(ErrorCode::does_not_fit, "{}: no room", name_of(Pool::state_staging));
    }
    write_state(c, false);
    if (placement_.optimizer_state[c] == Tier::device) release_state(c);
    states_[c] = kNone;
  }
}

void Compiler::commit_step() {
  Op op;
  op.kind = OpKind::commit;
  op.lane = Lane::commit;
  op.waits = written_;
  commit_ = emitter_.emit(std::move(op));
}

}  // namespace terrace
