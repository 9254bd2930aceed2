// Gradients' way to their home, and sums' way to the update.
#include "src/plan/compiler.h"

namespace terrace {

// Chunks whose sums must come to the host in this micro-batch, in order of need: before the first those of
// the pending updates, later those of earlier contributions, for their folds.
void Compiler::list_sums(std::uint32_t micro_batch) {
  sum_order_.clear();
  next_sum_ = 0;
  sums_pending_ = micro_batch == 0;
  if (sums_pending_) {
    if (updates_in_backward()) return;
    for (const std::uint32_t c : update_order_) {
      if (placement_.gradients[c] != Tier::host) sum_order_.push_back(c);
    }
    return;
  }
  for (std::size_t u = model_.units.size(); u-- > 0;) {
    for (const std::uint32_t c : unit_chunks_[u]) {
      if (placement_.gradients[c] == Tier::nvme) sum_order_.push_back(c);
    }
  }
}

// Brings the first `needed` sums of the order and, where room is left, more.
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
    bring_sum(c, sums_pending_);
  }
}

// The order of sum_order_ is that of the need.
SlotId Compiler::staged_sum(std::uint32_t chunk) {
  while (sums_[chunk] == kNone) fetch_sums(next_sum_ + 1);
  if (ahead_) fetch_sums(next_sum_);
  return sums_[chunk];
}

void Compiler::bring_sum(std::uint32_t chunk, bool predicated) {
  const bool on_disk = placement_.gradients[chunk] == Tier::nvme;
  transfer(on_disk ? OpKind::read_gradient : OpKind::copy_to_host, on_disk ? Lane::nvme : Lane::d2h,
           whole(residents_.grad_home[chunk], AccessMode::read), whole(sums_[chunk], AccessMode::write),
           chunks_[chunk].unit, chunk, predicated);
}

void Compiler::release_sum(std::uint32_t chunk) {
  if (sums_[chunk] == kNone) return;
  retire(Pool::sum_staging, sums_[chunk]);
  sums_[chunk] = kNone;
}

void Compiler::reduce_gradient(std::uint32_t unit, SlotId contribution) {
  const std::uint64_t element = dtype_bytes(model_.grad_dtype);
  const bool first = micro_batch_ == 0;
  // The update follows at once: the sum need not go home.
  const bool updates = updates_in_backward() && micro_batch_ + 1 == contributions_;
  for (const std::uint32_t c : unit_chunks_[unit]) {
    const Chunk& chunk = chunks_[c];
    const Access source{contribution, AccessMode::read, Role::none, chunk.begin * element,
                        chunk.numel * element};
    const Tier tier = placement_.gradients[c];
    const SlotId home = residents_.grad_home[c];
    const std::uint64_t sum_bytes = emitter_.slot(home).bytes;
    const AccessMode adds = first ? AccessMode::write : AccessMode::update;
    Op fold;
    fold.kind = OpKind::fold;
    fold.lane = tier == Tier::device ? Lane::compute : Lane::optimizer;
    fold.unit = unit;
    fold.chunk = c;
    fold.micro_batch = micro_batch_;
    fold.bytes = source.bytes;
    SlotId sum = home;
    if (tier == Tier::device) {
      fold.accesses = {source, whole(home, adds)};
      folds_.push_back(emitter_.emit(std::move(fold)));
      if (!updates) continue;
      sum = sums_[c] = slot(Pool::sum_staging, Item::grad_sum, unit, c, sum_bytes);
      bring_sum(c, false);
    } else {
      if (tier == Tier::nvme) {
        if (first) sums_[c] = slot(Pool::sum_staging, Item::grad_sum, unit, c, sum_bytes);
        sum = staged_sum(c);
      }
      SlotId staged = kNone;
      if (contributions_ == 1) {  // arrives in place: the fold only looks at it
        transfer(OpKind::copy_to_host, Lane::d2h, source, whole(sum, AccessMode::write), unit, c);
        fold.accesses = {whole(sum, AccessMode::read)};
      } else {
        staged = slot(Pool::grad_staging, Item::grad_chunk, unit, c, source.bytes);
        transfer(OpKind::copy_to_host, Lane::d2h, source, whole(staged, AccessMode::write), unit, c);
        fold.accesses = {whole(staged, AccessMode::read), whole(sum, adds)};
      }
      folds_.push_back(emitter_.emit(std::move(fold)));
      if (staged != kNone) release(Pool::grad_staging, staged);
    }
    age_retired();
    if (updates) {
      update_chunk(c, sum);
    } else if (tier == Tier::nvme) {
      transfer(OpKind::write_gradient, Lane::nvme, whole(sum, AccessMode::read),
               whole(home, AccessMode::write), unit, c);
    }
    release_sum(c);
  }
}

}  // namespace terrace
