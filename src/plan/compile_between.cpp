// Programs that run between steps.
#include "src/plan/compiler.h"

namespace terrace {

// What the step before left pending.
void Compiler::drain() {
  take_carried();
  if (updates_in_backward()) {
    write_pending();
  } else {
    list_sums(0);
    update_units(static_cast<std::uint32_t>(model_.units.size()));
  }
  release_retired();
  renew_all();
}

void Compiler::materialize() {
  std::size_t fetched = 0;
  for (const std::uint32_t c : update_order_) {
    fetch_states(++fetched);
    Op op;
    op.kind = OpKind::cast_param;
    op.lane = Lane::optimizer;
    op.unit = chunks_[c].unit;
    op.chunk = c;
    op.bytes = chunks_[c].numel * (4 + dtype_bytes(model_.param_dtype));
    op.accesses = {whole(states_[c], AccessMode::read)};
    parameters_out(c, std::move(op), false);
    age_retired();
    if (placement_.optimizer_state[c] == Tier::device) {
      transfer(OpKind::copy_to_device, Lane::h2d, whole(states_[c], AccessMode::read),
               whole(residents_.state_home[c], AccessMode::write), chunks_[c].unit, c);
    }
    if (residents_.state_copy[c] != kNone) write_state(c, false);
    if (placement_.optimizer_state[c] != Tier::host) release_state(c);
  }
  release_retired();
  renew_all();
}

// What lives on disk has been written by its updates; the rest is written here.
void Compiler::commit_states_in_memory() {
  write_states_in_memory();
  commit_step();
}

void Compiler::visit_states() {
  std::size_t fetched = 0;
  for (const std::uint32_t c : update_order_) {
    fetch_states(++fetched);
    Op op;
    op.kind = OpKind::visit_state;
    op.lane = Lane::optimizer;
    op.unit = chunks_[c].unit;
    op.chunk = c;
    op.bytes = chunks_[c].numel * 12;
    op.accesses = {whole(states_[c], AccessMode::read)};
    emitter_.emit(std::move(op));
    age_retired();
    if (placement_.optimizer_state[c] != Tier::host) release_state(c);
  }
}

}  // namespace terrace
