// Gradients' way to their home, updates, and the parameters' making at the start of a run.
#include <algorithm>

#include "src/base/fail.h"
#include "src/plan/compiler.h"

namespace terrace {

// Chunks whose sum of earlier contributions must come from nvme before this micro-batch's fold.
void Compiler::list_sums(std::uint32_t micro_batch) {
  sum_order_.clear();
  next_sum_ = 0;
  if (micro_batch == 0) return;
  for (std::size_t u = model_.units.size(); u-- > 0;) {
    for (const std::uint32_t c : unit_chunks_[u]) {
      if (placement_.gradients[c] == Tier::nvme) sum_order_.push_back(c);
    }
  }
}

// Reads the first `needed` sums of the order and, where room is left, more.
void Compiler::fetch_sums(std::size_t needed) {
  for (; next_sum_ < sum_order_.size(); ++next_sum_) {
    const bool demanded = next_sum_ < needed;
    if (!demanded && !ahead_) return;
    const std::uint32_t c = sum_order_[next_sum_];
    const std::uint64_t bytes = emitter_.slot(residents_.grad_home[c]).bytes;
    const SlotId staged = demanded ? slot(Pool::sum_staging, Item::grad_sum, chunks_[c].unit, c, bytes)
                                   : try_slot(Pool::sum_staging, Item::grad_sum, chunks_[c].unit, c, bytes);
    if (staged == kNone) return;
    sums_[c] = staged;
    transfer(OpKind::read_gradient, Lane::nvme, whole(residents_.grad_home[c], AccessMode::read),
             whole(staged, AccessMode::write), chunks_[c].unit, c);
  }
}

void Compiler::reduce_gradient(std::uint32_t unit, SlotId contribution) {
  const std::uint64_t element = dtype_bytes(model_.grad_dtype);
  const bool first = micro_batch_ == 0;
  for (const std::uint32_t c : unit_chunks_[unit]) {
    const Chunk& chunk = chunks_[c];
    const Access source{contribution, AccessMode::read, Role::none, chunk.begin * element,
                        chunk.numel * element};
    const Tier tier = placement_.gradients[c];
    const SlotId home = residents_.grad_home[c];
    Op fold;
    fold.kind = OpKind::fold;
    fold.lane = tier == Tier::device ? Lane::compute : Lane::optimizer;
    fold.unit = unit;
    fold.chunk = c;
    fold.micro_batch = micro_batch_;
    fold.bytes = source.bytes;
    if (tier == Tier::device) {
      fold.accesses = {source, whole(home, first ? AccessMode::write : AccessMode::update)};
      folds_.push_back(emitter_.emit(std::move(fold)));
      continue;
    }
    SlotId sum = home;
    if (tier == Tier::nvme) {
      if (first) {
        sum = slot(Pool::sum_staging, Item::grad_sum, unit, c, emitter_.slot(home).bytes);
      } else {
        while (sums_[c] == kNone) fetch_sums(next_sum_ + 1);  // the order of the list is that of the folds
        sum = sums_[c];
      }
    }
    SlotId staged = kNone;
    if (contributions_ == 1) {  // arrives in place: the fold only looks at it
      transfer(OpKind::copy_to_host, Lane::d2h, source, whole(sum, AccessMode::write), unit, c);
      fold.accesses = {whole(sum, AccessMode::read)};
    } else {
      staged = slot(Pool::grad_staging, Item::grad_chunk, unit, c, source.bytes);
      transfer(OpKind::copy_to_host, Lane::d2h, source, whole(staged, AccessMode::write), unit, c);
      fold.accesses = {whole(staged, AccessMode::read),
                       whole(sum, first ? AccessMode::write : AccessMode::update)};
    }
    folds_.push_back(emitter_.emit(std::move(fold)));
    if (staged != kNone) release(Pool::grad_staging, staged);
    if (tier == Tier::nvme) {
      release_retired();
      transfer(OpKind::write_gradient, Lane::nvme, whole(sum, AccessMode::read),
               whole(home, AccessMode::write), unit, c);
      retire(Pool::sum_staging, sum);
      sums_[c] = kNone;
    }
  }
}

// Brings a chunk's state (and summed gradient) into host memory; nothing when there is no room.
std::optional<SlotId> Compiler::fetch_state(std::uint32_t c, bool with_sum) {
  const std::uint32_t unit = chunks_[c].unit;
  const Tier state_tier = placement_.optimizer_state[c];
  const Tier sum_tier = placement_.gradients[c];
  SlotId state = residents_.state_home[c];
  if (state_tier != Tier::host) {
    state = try_slot(Pool::state_staging, Item::state_chunk, unit, c, state_slot_bytes(chunks_[c].numel));
    if (state == kNone) return std::nullopt;
  }
  SlotId sum = residents_.grad_home[c];
  if (with_sum && sum_tier != Tier::host) {
    sum = try_slot(Pool::sum_staging, Item::grad_sum, unit, c, emitter_.slot(sum).bytes);
    if (sum == kNone) {
      if (state_tier != Tier::host) release(Pool::state_staging, state);
      return std::nullopt;
    }
  }
  const bool starting = kind_ == ProgramKind::materialize;
  if (starting || state_tier == Tier::nvme) {
    const SlotId extent = residents_.store_extent[c];
    if (extent != kNone) {
      transfer(OpKind::read_state, Lane::nvme, whole(extent, AccessMode::read),
               whole(state, AccessMode::write), unit, c);
    } else {
      Op op;
      op.kind = OpKind::read_state;
      op.lane = Lane::nvme;
      op.unit = unit;
      op.chunk = c;
      op.accesses = {whole(state, AccessMode::write)};
      emitter_.emit(std::move(op));
    }
  } else if (state_tier == Tier::device) {
    transfer(OpKind::copy_to_host, Lane::d2h, whole(residents_.state_home[c], AccessMode::read),
             whole(state, AccessMode::write), unit, c);
  }
  if (with_sum && sum_tier != Tier::host) {
    const Access home = whole(residents_.grad_home[c], AccessMode::read);
    if (sum_tier == Tier::nvme) {
      transfer(OpKind::read_gradient, Lane::nvme, home, whole(sum, AccessMode::write), unit, c);
    } else {
      transfer(OpKind::copy_to_host, Lane::d2h, home, whole(sum, AccessMode::write), unit, c);
    }
  }
  sums_[c] = with_sum ? sum : kNone;
  states_[c] = state;
  return state;
}

// Fetches the first `needed` chunks' states and, where room is left, more. Sums are ready only after the
// verdict; before it, only states whose sums need no fetch are fetched ahead.
void Compiler::fetch_states(std::size_t needed) {
  const bool with_sum = kind_ == ProgramKind::train || kind_ == ProgramKind::train_commit;
  for (; next_state_ < chunks_.size(); ++next_state_) {
    const auto c = static_cast<std::uint32_t>(next_state_);
    const bool demanded = next_state_ < needed;
    if (!demanded && !ahead_) return;
    if (with_sum && verdict_ == kNone && placement_.gradients[c] != Tier::host) return;
    if (!fetch_state(c, with_sum)) {
      if (!demanded) return;
      release_retired();
      if (!fetch_state(c, with_sum)) {
        fail(ErrorCode::does_not_fit, "{}: no room for chunk {}", name_of(Pool::state_staging), c);
      }
    }
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
  if (tier == Tier::nvme) {
    transfer(OpKind::write_param, Lane::nvme, whole(staged, AccessMode::read), home, unit, c, predicated);
  } else {
    transfer(OpKind::copy_to_device, Lane::h2d, whole(staged, AccessMode::read), home, unit, c, predicated);
  }
  release(Pool::param_staging, staged);
}

void Compiler::update_all() {
  const bool commits = kind_ == ProgramKind::train_commit;
  std::vector<OpId> written;
  for (std::uint32_t c = 0; c < chunks_.size(); ++c) {
    fetch_states(c + 1);
    const Tier state_tier = placement_.optimizer_state[c];
    Op op;
    op.kind = OpKind::update;
    op.lane = Lane::optimizer;
    op.predicated = true;
    op.unit = chunks_[c].unit;
    op.chunk = c;
    op.micro_batch = micro_batch_;
    op.bytes = chunks_[c].numel * 28;
    op.waits = {verdict_};
    op.accesses = {whole(states_[c], AccessMode::update), whole(sums_[c], AccessMode::read)};
    parameters_out(c, std::move(op), true);

    release_retired();
    Op write;
    if (state_tier == Tier::device) {
      // The store writes a trailer behind the payload it writes: not while the whole slot is being copied.
      write.waits = {transfer(OpKind::copy_to_device, Lane::h2d, whole(states_[c], AccessMode::read),
                              whole(residents_.state_home[c], AccessMode::write), chunks_[c].unit, c, true)};
    }
    if (state_tier == Tier::nvme || commits) {
      // What lives on disk is written after every update that happened; a commit also writes what lives in
      // memory, updated or not, since earlier steps may have changed it.
      write.kind = OpKind::write_state;
      write.lane = Lane::nvme;
      write.predicated = state_tier == Tier::nvme;
      write.unit = chunks_[c].unit;
      write.chunk = c;
      write.micro_batch = micro_batch_;
      write.accesses = {whole(states_[c], AccessMode::read),
                        whole(residents_.store_extent[c], AccessMode::write)};
      write.bytes = write.accesses[0].bytes;
      written.push_back(emitter_.emit(std::move(write)));
    }
    if (state_tier != Tier::host) retire(Pool::state_staging, states_[c]);
    if (placement_.gradients[c] != Tier::host) retire(Pool::sum_staging, sums_[c]);
  }
  release_retired();
  if (commits) {
    Op op;
    op.kind = OpKind::commit;
    op.lane = Lane::nvme;
    op.waits = written;
    emitter_.emit(std::move(op));
  }
}

void Compiler::materialize() {
  for (std::uint32_t c = 0; c < chunks_.size(); ++c) {
    fetch_states(c + 1);
    Op op;
    op.kind = OpKind::cast_param;
    op.lane = Lane::optimizer;
    op.unit = chunks_[c].unit;
    op.chunk = c;
    op.bytes = chunks_[c].numel * (4 + dtype_bytes(model_.param_dtype));
    op.accesses = {whole(states_[c], AccessMode::read)};
    parameters_out(c, std::move(op), false);
    release_retired();
    if (placement_.optimizer_state[c] == Tier::device) {
      transfer(OpKind::copy_to_device, Lane::h2d, whole(states_[c], AccessMode::read),
               whole(residents_.state_home[c], AccessMode::write), chunks_[c].unit, c);
    }
    if (placement_.optimizer_state[c] != Tier::host) retire(Pool::state_staging, states_[c]);
  }
  release_retired();
}

// What lives on disk has been written by its updates; the rest is written here.
void Compiler::commit_resident() {
  Op op;
  op.kind = OpKind::commit;
  op.lane = Lane::nvme;
  for (std::uint32_t c = 0; c < chunks_.size(); ++c) {
    if (placement_.optimizer_state[c] == Tier::nvme) continue;
    if (!fetch_state(c, false)) {
      release_retired();
      if (!fetch_state(c, false)) fail(ErrorCode::does_not_fit, "{}: no room", name_of(Pool::state_staging));
    }
    op.waits.push_back(transfer(OpKind::write_state, Lane::nvme, whole(states_[c], AccessMode::read),
                                whole(residents_.store_extent[c], AccessMode::write), chunks_[c].unit, c));
    if (placement_.optimizer_state[c] == Tier::device) retire(Pool::state_staging, states_[c]);
  }
  release_retired();
  emitter_.emit(std::move(op));
}

void Compiler::visit_states() {
  for (std::uint32_t c = 0; c < chunks_.size(); ++c) {
    fetch_states(c + 1);
    Op op;
    op.kind = OpKind::visit_state;
    op.lane = Lane::optimizer;
    op.unit = chunks_[c].unit;
    op.chunk = c;
    op.bytes = chunks_[c].numel * 12;
    op.accesses = {whole(states_[c], AccessMode::read)};
    emitter_.emit(std::move(op));
    release_retired();
    if (placement_.optimizer_state[c] != Tier::host) retire(Pool::state_staging, states_[c]);
  }
  release_retired();
}

}  // namespace terrace
