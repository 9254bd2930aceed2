#include "src/plan/compiler.h"

#include <algorithm>

#include "src/base/fail.h"

namespace terrace {
namespace {

// Pools whose slots come and go in turn: the one released last is used again last.
bool rotates(Pool pool) {
  return pool != Pool::activation && pool != Pool::workspace && pool != Pool::piece;
}

}  // namespace

Compiler::Compiler(const CompileInput& input, ProgramKind kind, const std::optional<PoolBytes>& pools,
                   bool ahead)
    : model_(*input.model),
      chunks_(*input.chunks),
      placement_(*input.placement),
      residents_(*input.residents),
      ranks_(*input.ranks),
      rank_(input.rank),
      contributions_(input.contributions),
      summands_(input.ranks->shape(), input.contributions),
      kind_(kind),
      updates_(input.updates),
      measuring_(!pools),
      ahead_(ahead),
      tier_bytes_(input.residents->bytes),
      emitter_(input.residents->slots, pools.has_value()) {
  for (int p = 0; pools && p < kPools; ++p) {
    std::uint64_t& used = tier_bytes_[static_cast<std::size_t>(tier_of(static_cast<Pool>(p)))];
    // Without fetching ahead the lowest gap is what measuring found to be enough.
    pools_[p] = SlotPool(used, (*pools)[p], ahead && rotates(static_cast<Pool>(p)));
    used += (*pools)[p];
  }
  const std::size_t units = model_.units.size();
  for (auto* chunks : {&unit_chunks_, &own_chunks_, &folded_chunks_, &kept_chunks_}) chunks->resize(units);
  trains_.assign(units, false);
  for (std::uint32_t c = 0; c < chunks_.size(); ++c) {
    const std::uint32_t u = chunks_[c].unit;
    const bool trains = !chunks_[c].master_only;
    if (trains) trains_[u] = true;
    if (ranks_.holds(rank_, c) && (trains || !is_periodic())) unit_chunks_[u].push_back(c);
    if (owns(c)) own_chunks_[u].push_back(c);
    if (owns(c) && trains) folded_chunks_[u].push_back(c);
    if (ranks_.keeps_parameters(rank_, c)) kept_chunks_[u].push_back(c);
  }
  for (std::uint32_t u = 0; u < units; ++u) renewed_.push_back(!ranks_.keeps_whole(u));
  live_pieces_.resize(units);
  outputs_.assign(units, kNone);
  saved_.assign(units, kNone);
  fetched_.assign(units, kNone);
  shared_grads_.assign(units, kNone);
  sums_.assign(chunks_.size(), kNone);
  states_.assign(chunks_.size(), kNone);
  list_updates();
  list_carried();
}

void Compiler::run() {
  switch (kind_) {
    case ProgramKind::train:
    case ProgramKind::train_commit:
      return train_step();
    case ProgramKind::drain:
      return drain();
    case ProgramKind::eval:
      return evaluate();
    case ProgramKind::materialize:
      return materialize();
    case ProgramKind::commit:
      return commit_states_in_memory();
    case ProgramKind::visit:
      return visit_states();
  }
}

// The visits of the compute lane in order, and which pieces each needs.
void Compiler::list_visits() {
  const auto units = static_cast<std::uint32_t>(model_.units.size());
  const bool train = kind_ != ProgramKind::eval;
  for (std::uint32_t round = 0; round < (train ? rounds() : 1); ++round) {
    const bool present = !train || first_of(round) + rank_ < contributions_;
    for (std::uint32_t u = 0; u < units - (train ? 1 : 0); ++u) visits_.push_back({true, u, round, present});
    for (std::uint32_t u = units; train && u-- > 0;) visits_.push_back({false, u, round, present});
  }
  flops_before_.push_back(0);
  for (std::size_t v = 0; v < visits_.size(); ++v) {
    const UnitShape& unit = model_.units[visits_[v].unit];
    const double flops = visits_[v].forward ? unit.forward_flops : unit.backward_flops + unit.forward_flops;
    flops_before_.push_back(flops_before_.back() + flops);
    if (!visits_[v].forward && !unit.backward_reads_params) continue;
    // Without a contribution a rank only takes part in gathers.
    const bool gathers = is_sharded() && (!ranks_.shape().keeps_all_parameters() || visits_[v].round == 0);
    if (!visits_[v].present && !gathers) continue;
    for (const std::uint32_t shared : unit.shared_units) needs_.push_back({v, shared});
    needs_.push_back({v, visits_[v].unit});
  }
}

void Compiler::train_step() {
  list_visits();
  take_carried();
  if (updates_in_backward()) write_pending();
  for (std::size_t v = 0; v < visits_.size(); ++v) {
    const Visit& visit = visits_[v];
    micro_batch_ = first_of(visit.round) + (visit.present ? rank_ : 0);
    if (visit.unit == 0 && visit.forward) list_sums(visit.round);
    if (!updates_in_backward()) update_units(visit.unit);
    fetch_next_states(v);
    fetch_pieces(v);
    if (visit.forward) {
      if (visit.present) forward(v);
    } else {
      const SlotId contribution = visit.present ? backward(v) : kNone;
      if (trains_[visit.unit]) {
        reduce_gradient(visit.unit, visit.round, contribution);
      } else if (contribution != kNone) {
        release(Pool::contribution, contribution);
      }
    }
    release_pieces(v);
    if (visit.unit == 0 && !visit.forward) end_round();
  }
  release_retired();
  Op stats;
  stats.kind = OpKind::grad_stats;
  stats.lane = has_ranks() ? Lane::collective : Lane::optimizer;
  stats.waits = folds_;
  emitter_.emit(std::move(stats));
}

void Compiler::evaluate() {
  list_visits();
  for (std::size_t v = 0; v < visits_.size(); ++v) {
    fetch_pieces(v);
    forward(v);
    release_pieces(v);
  }
}

Slot Compiler::slot_of(Pool pool, Item item, std::uint32_t unit, std::uint32_t chunk,
                       std::uint64_t bytes) const {
  Slot made;
  made.tier = tier_of(pool);
  made.item = item;
  made.unit = unit;
  made.chunk = chunk;
  made.micro_batch = micro_batch_;
  made.bytes = bytes;
  return made;
}

SlotId Compiler::try_slot(Pool pool, Item item, std::uint32_t unit, std::uint32_t chunk,
                          std::uint64_t bytes) {
  const auto offset = pools_[static_cast<std::size_t>(pool)].take(bytes);
  if (!offset) return kNone;
  Slot made = slot_of(pool, item, unit, chunk, bytes);
  made.offset_bytes = *offset;
  return emitter_.add_slot(made);
}

SlotId Compiler::slot(Pool pool, Item item, std::uint32_t unit, std::uint32_t chunk, std::uint64_t bytes) {
  SlotId id = try_slot(pool, item, unit, chunk, bytes);
  if (id == kNone) {
    release_retired();
    id = try_slot(pool, item, unit, chunk, bytes);
  }
  if (id == kNone) fail(ErrorCode::does_not_fit, "{}: no room for {} bytes", name_of(pool), bytes);
  return id;
}

void Compiler::release(Pool pool, SlotId id) {
  pools_[static_cast<std::size_t>(pool)].give_back(emitter_.slot(id).offset_bytes);
}

void Compiler::retire(Pool pool, SlotId id) {
  if (!ahead_) return release(pool, id);
  retired_[static_cast<std::size_t>(pool)].push_back(id);
}

void Compiler::age_retired() {
  for (int pool = 0; pool < kPools; ++pool) {
    auto& waiting = retired_[pool];
    const std::size_t kept = static_cast<Pool>(pool) == Pool::state_staging ? kept_states_ : 0;
    for (; waiting.size() > kept; waiting.pop_front()) release(static_cast<Pool>(pool), waiting.front());
  }
}

void Compiler::release_retired() {
  for (int pool = 0; pool < kPools; ++pool) {
    for (const SlotId id : retired_[pool]) release(static_cast<Pool>(pool), id);
    retired_[pool].clear();
  }
}

Access Compiler::whole(SlotId id, AccessMode mode, Role role) const {
  return {id, mode, role, 0, emitter_.slot(id).bytes};
}

OpId Compiler::transfer(OpKind kind, Lane lane, Access from, Access to, std::uint32_t unit,
                        std::uint32_t chunk, bool predicated) {
  Op op;
  op.kind = kind;
  op.lane = lane;
  op.unit = unit;
  op.chunk = chunk;
  op.micro_batch = micro_batch_;
  op.predicated = predicated;
  op.bytes = from.bytes;
  op.accesses = {from, to};
  return emitter_.emit(std::move(op));
}

PoolBytes Compiler::peaks() const {
  PoolBytes bytes{};
  for (int p = 0; p < kPools; ++p) bytes[p] = pools_[p].peak_bytes();
  return bytes;
}

StepProgram Compiler::take() {
  StepProgram program = emitter_.take();
  program.kind = kind_;
  program.updates = updates_;
  program.contributions = contributions_;
  program.summands = summands_.count();
  program.tier_bytes = tier_bytes_;
  return program;
}

}  // namespace terrace
