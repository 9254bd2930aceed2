// Gradients' way to their home, and sums' way to the update.
#include "src/plan/compiler.h"

namespace terrace {

// Where contributions of an own chunk are added up.
SlotId Compiler::fold_home(std::uint32_t chunk) const {
  const SlotId separate = residents_.accumulator_home[chunk];
  return separate != kNone ? separate : residents_.grad_home[chunk];
}

// Chunks whose sums must come to the host in this round, in order of need: before the first those of the
// pending updates, later those of earlier contributions, for their folds.
void Compiler::list_sums(std::uint32_t round) {
  sum_order_.clear();
  next_sum_ = 0;
  sums_pending_ = round == 0;
  if (sums_pending_) {
    if (updates_in_backward()) return;
    for (const std::uint32_t c : update_order_) {
      if (placement_.gradients[c] != Tier::host) sum_order_.push_back(c);
    }
    return;
  }
  const bool adds = summands_.first(round) > 0 && summands_.first(round) < summands_.end(round);
  for (std::size_t u = model_.units.size(); adds && u-- > 0;) {
    for (const std::uint32_t c : folded_chunks_[u]) {
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
    const Slot& home = emitter_.slot(sums_pending_ ? residents_.grad_home[c] : fold_home(c));
    const Item item = home.item;
    const std::uint64_t bytes = home.bytes;
    const SlotId staged = demanded ? slot(Pool::sum_staging, item, chunks_[c].unit, c, bytes)
                                   : try_slot(Pool::sum_staging, item, chunks_[c].unit, c, bytes);
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
           whole(sums_pending_ ? residents_.grad_home[chunk] : fold_home(chunk), AccessMode::read),
           whole(sums_[chunk], AccessMode::write), chunks_[chunk].unit, chunk, predicated);
}

void Compiler::release_sum(std::uint32_t chunk) {
  if (sums_[chunk] == kNone) return;
  retire(Pool::sum_staging, sums_[chunk]);
  sums_[chunk] = kNone;
}

// One round of a unit's contributions to the chunks that this rank folds. `contribution` is its own, kNone
// where it has none in this round.
void Compiler::reduce_gradient(std::uint32_t unit, std::uint32_t round, SlotId contribution) {
  if (summands_.order() == Reduction::last) {
    if (contribution != kNone) accumulate(unit, round, contribution);
    if (!is_last(round)) return release(Pool::contribution, contribution);
    contribution = own_summand(unit, contribution);
  }
  const SlotId source = has_ranks() ? bring_summands(unit, round, contribution) : contribution;
  if (contribution != kNone) {
    if (has_ranks() && ranks_.shape().stage == Stage::optimizer) {
      contributed_.push_back(contribution);  // nothing waits for its exchange before the round ends
    } else if (source != contribution) {
      release(Pool::contribution, contribution);
    }
  }
  const bool spreads = is_replicated() && is_last(round);
  SlotId sum_piece = kNone;
  if (spreads) {
    sum_piece = slot(Pool::contribution, Item::sum_piece, unit, kNone,
                     model_.units[unit].padded_numel() * dtype_bytes(model_.grad_dtype));
  }
  for (const std::uint32_t c : folded_chunks_[unit]) fold_chunk(c, round, source, sum_piece);
  if (spreads) fill_sums(unit, round, source, sum_piece);
  if (source != kNone && source != contribution) release(Pool::received, source);
  if (source != kNone && source == contribution) release(Pool::contribution, source);
  if (!spreads) return;
  spread_sums(unit, sum_piece);
  release(Pool::contribution, sum_piece);
}

// Chunks without a gradient have no sum; what stands in their place is sent all the same, so something must.
void Compiler::fill_sums(std::uint32_t unit, std::uint32_t round, SlotId source, SlotId sum_piece) {
  const std::uint64_t element = dtype_bytes(model_.grad_dtype);
  const NumelRange own = has_ranks() ? ranks_.own_range(unit, rank_) : NumelRange{0, 0};
  for (const std::uint32_t c : own_chunks_[unit]) {
    const Chunk& chunk = chunks_[c];
    if (!chunk.master_only) continue;
    const std::uint64_t last = summands_.end(round) - 1 - summands_.first(round);
    const std::uint64_t begin = has_ranks() ? last * own.numel() + (chunk.begin - own.begin) : chunk.begin;
    transfer(OpKind::copy_to_device, Lane::h2d,
             {source, AccessMode::read, Role::none, begin * element, chunk.numel * element},
             {sum_piece, AccessMode::write, Role::none, chunk.begin * element, chunk.numel * element}, unit,
             c);
  }
}

// What the owner folds of this round, [summands][own part]; kNone where this rank has no part of the unit.
SlotId Compiler::bring_summands(std::uint32_t unit, std::uint32_t round, SlotId contribution) {
  const NumelRange all{0, model_.units[unit].padded_numel()};
  const NumelRange own = ranks_.own_range(unit, rank_);
  const Reduction order = summands_.order();
  if (order == Reduction::hierarchical) {
    const NumelRange shard = ranks_.shard_range(unit, rank_);
    const SlotId of_replica = exchange(RankGroup::shard, unit, round, contribution, all, shard);
    const SlotId sum = sum_group(unit, round, of_replica, shard);
    const SlotId received = exchange(RankGroup::replicate, unit, round, sum, shard, own);
    if (sum != kNone) release(Pool::received, sum);
    return received;
  }
  const SlotId received = exchange(RankGroup::world, unit, round, contribution, all, own);
  return order == Reduction::grouped ? sum_group(unit, round, received, own) : received;
}

// This rank's elements `all` to the ranks of the group that have parts of them, and what they have to send to
// this one's part `mine`. kNone where it has none, or nobody sends.
SlotId Compiler::exchange(RankGroup group, std::uint32_t unit, std::uint32_t round, SlotId sent,
                          NumelRange all, NumelRange mine) {
  const std::uint64_t element = dtype_bytes(model_.grad_dtype);
  const std::uint32_t senders = summands_.senders(group, rank_, round);
  if (all.empty() || senders == 0) return kNone;
  Op op;
  op.kind = OpKind::reduce_scatter;
  op.lane = Lane::collective;
  op.group = group;
  op.unit = unit;
  op.micro_batch = summands_.order() == Reduction::last ? 0 : first_of(round);
  SlotId received = kNone;
  if (sent != kNone) {
    op.accesses.push_back({sent, AccessMode::read, Role::grads, 0, all.numel() * element});
    op.bytes = (all.numel() - mine.numel()) * element;
  }
  if (!mine.empty()) {
    received = slot(Pool::received, Item::received, unit, kNone, senders * mine.numel() * element);
    op.accesses.push_back(whole(received, AccessMode::write, Role::received));
  }
  emitter_.emit(std::move(op));
  return received;
}

// Adds a contribution of this rank to its local sum.
void Compiler::accumulate(std::uint32_t unit, std::uint32_t round, SlotId contribution) {
  const AccessMode adds = round == 0 ? AccessMode::write : AccessMode::update;
  transfer(OpKind::accumulate, Lane::compute, whole(contribution, AccessMode::read),
           whole(residents_.local_sum_home[unit], adds), unit, kNone);
}

// The local sum, rounded, in the place of this rank's last contribution or, where it has none in the last
// round, in a slot of its own.
SlotId Compiler::own_summand(std::uint32_t unit, SlotId contribution) {
  if (contribution == kNone) {
    contribution = slot(Pool::contribution, Item::contribution, unit, kNone,
                        model_.units[unit].padded_numel() * dtype_bytes(model_.grad_dtype));
  }
  transfer(OpKind::round_sum, Lane::compute, whole(residents_.local_sum_home[unit], AccessMode::read),
           whole(contribution, AccessMode::write), unit, kNone);
  return contribution;
}

// Adds up what the ranks of a group have sent to `range` of this one.
SlotId Compiler::sum_group(std::uint32_t unit, std::uint32_t round, SlotId received, NumelRange range) {
  if (received == kNone) return kNone;
  const SlotId sum =
      slot(Pool::received, Item::group_sum, unit, kNone, range.numel() * dtype_bytes(model_.grad_dtype));
  const std::uint32_t before = micro_batch_;
  micro_batch_ = first_of(round);
  if (summands_.order() == Reduction::hierarchical)
    micro_batch_ += rank_ / ranks_.shape().shard_size() * ranks_.shape().shard_size();
  transfer(OpKind::sum_group, Lane::compute, whole(received, AccessMode::read), whole(sum, AccessMode::write),
           unit, kNone);
  micro_batch_ = before;
  release(Pool::received, received);
  return sum;
}

// Folds the round's summands of a chunk, in ascending order. After the last the sum goes to its home, to
// its update, or, rounded, into the sum_piece that the replicas exchange.
void Compiler::fold_chunk(std::uint32_t c, std::uint32_t round, SlotId source, SlotId sum_piece) {
  const Chunk& chunk = chunks_[c];
  const std::uint32_t unit = chunk.unit;
  const std::uint64_t element = dtype_bytes(model_.grad_dtype);
  const NumelRange own = has_ranks() ? ranks_.own_range(unit, rank_) : NumelRange{0, 0};
  const Tier tier = placement_.gradients[c];
  const SlotId home = fold_home(c);
  const bool last = is_last(round);
  const bool replicated = is_replicated();
  const bool updates = updates_in_backward() && last && !replicated;  // the sum need not go home
  const bool in_place = summands_.count() == 1;                       // a single summand is the sum
  const bool sums = !(in_place && replicated);                        // there is a place to add up in
  SlotId sum = home;
  if (tier == Tier::nvme && sums) {
    const Slot& at_home = emitter_.slot(home);
    const Item item = at_home.item;
    const std::uint64_t bytes = at_home.bytes;
    if (summands_.first(round) == 0) sums_[c] = slot(Pool::sum_staging, item, unit, c, bytes);
    sum = staged_sum(c);
  }
  const Access rounded_target{sum_piece, AccessMode::write, Role::none, chunk.begin * element,
                              chunk.numel * element};
  for (std::uint32_t k = summands_.first(round); k < summands_.end(round); ++k) {
    const std::uint64_t begin =
        has_ranks() ? (k - summands_.first(round)) * own.numel() + (chunk.begin - own.begin) : chunk.begin;
    const Access contribution{source, AccessMode::read, Role::none, begin * element, chunk.numel * element};
    const AccessMode adds = k == 0 ? AccessMode::write : AccessMode::update;
    const bool rounds_out = replicated && k + 1 == summands_.count();
    Op fold;
    fold.kind = OpKind::fold;
    fold.lane = tier == Tier::device ? Lane::compute : Lane::optimizer;
    fold.unit = unit;
    fold.chunk = c;
    fold.micro_batch = k;
    fold.bytes = contribution.bytes;
    const std::uint32_t before = micro_batch_;
    micro_batch_ = k;
    if (in_place && replicated) {
      transfer(OpKind::copy_to_device, Lane::h2d, contribution, rounded_target, unit, c);
    }
    SlotId staged = kNone, rounded = kNone;
    if (tier == Tier::device) {
      fold.accesses = {contribution};
      if (sums) fold.accesses.push_back(whole(home, adds));
      if (sums && rounds_out) fold.accesses.push_back(rounded_target);
    } else if (in_place && sums) {  // arrives in place: the fold only looks at it
      transfer(OpKind::copy_to_host, Lane::d2h, contribution, whole(sum, AccessMode::write), unit, c);
      fold.accesses = {whole(sum, AccessMode::read)};
    } else {
      staged = slot(Pool::grad_staging, Item::grad_chunk, unit, c, contribution.bytes);
      transfer(OpKind::copy_to_host, Lane::d2h, contribution, whole(staged, AccessMode::write), unit, c);
      fold.accesses = {whole(staged, AccessMode::read)};
      if (sums) fold.accesses.push_back(whole(sum, adds));
      if (sums && rounds_out) {
        rounded = slot(Pool::grad_staging, Item::grad_chunk, unit, c, contribution.bytes);
        fold.accesses.push_back(whole(rounded, AccessMode::write));
      }
    }
    folds_.push_back(emitter_.emit(std::move(fold)));
    if (rounded != kNone) {
      transfer(OpKind::copy_to_device, Lane::h2d, whole(rounded, AccessMode::read), rounded_target, unit, c);
      release(Pool::grad_staging, rounded);
    }
    if (staged != kNone) release(Pool::grad_staging, staged);
    micro_batch_ = before;
  }
  if (tier == Tier::device && updates) {
    sum = sums_[c] = slot(Pool::sum_staging, Item::grad_sum, unit, c, emitter_.slot(home).bytes);
    transfer(OpKind::copy_to_host, Lane::d2h, whole(home, AccessMode::read), whole(sum, AccessMode::write),
             unit, c);
  }
  age_retired();
  if (updates) {
    update_chunk(c, sum);
  } else if (tier == Tier::nvme && sums && !(last && replicated)) {
    transfer(OpKind::write_gradient, Lane::nvme, whole(sum, AccessMode::read), whole(home, AccessMode::write),
             unit, c);
  }
  release_sum(c);
}

// The rounded sums of a unit to all replicas, and from there to their homes or their updates.
void Compiler::spread_sums(std::uint32_t unit, SlotId sum_piece) {
  const std::uint64_t element = dtype_bytes(model_.grad_dtype);
  all_gather(RankGroup::replicate, unit, sum_piece, element, ranks_.own_range(unit, rank_),
             ranks_.shard_range(unit, rank_));
  for (const std::uint32_t c : unit_chunks_[unit]) {
    const Chunk& chunk = chunks_[c];
    const Tier tier = placement_.gradients[c];
    const Access source{sum_piece, AccessMode::read, Role::none, chunk.begin * element,
                        chunk.numel * element};
    const SlotId home = residents_.grad_home[c];
    if (!updates_in_backward() && tier == Tier::device) {
      transfer(OpKind::copy_to_device, Lane::h2d, source, whole(home, AccessMode::write), unit, c);
      continue;
    }
    SlotId sum = home;
    if (tier != Tier::host) {
      sum = sums_[c] = slot(Pool::sum_staging, Item::grad_sum, unit, c, emitter_.slot(home).bytes);
    }
    transfer(OpKind::copy_to_host, Lane::d2h, source, whole(sum, AccessMode::write), unit, c);
    age_retired();
    if (updates_in_backward()) {
      update_chunk(c, sum);
    } else if (tier == Tier::nvme) {
      transfer(OpKind::write_gradient, Lane::nvme, whole(sum, AccessMode::read),
               whole(home, AccessMode::write), unit, c);
    }
    release_sum(c);
  }
}

void Compiler::end_round() {
  for (const SlotId contribution : contributed_) release(Pool::contribution, contribution);
  contributed_.clear();
}

}  // namespace terrace
