// The compiler's working state: walks a step in order and emits its operations. Internal to src/plan;
// compile.h is the way in.
#pragma once

#include <algorithm>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "src/plan/compile.h"
#include "src/plan/emitter.h"
#include "src/plan/slot_pool.h"

namespace terrace {

class Compiler {
 public:
  // Without `pools` it measures: pools are never full. `ahead`: fetch before the need arises.
  Compiler(const CompileInput& input, ProgramKind kind, const std::optional<PoolBytes>& pools, bool ahead);

  void run();
  PoolBytes peaks() const;
  StepProgram take();

 private:
  // One visit of the compute lane to a unit (backward with its recomputation is one visit), in one round:
  // every rank computes one contribution a round; in the last some may have none, and only join the
  // collectives.
  struct Visit {
    bool forward = true;
    std::uint32_t unit = 0;
    std::uint32_t round = 0;
    bool present = true;
  };
  // A visit that needs a unit's piece on the device.
  struct PieceNeed {
    std::size_t visit = 0;
    std::uint32_t unit = 0;
  };
  struct LivePiece {
    SlotId slot = kNone;
    std::size_t last_visit = 0;
  };

  // A carried chunk's place in the pool of state slots.
  struct Carried {
    std::uint32_t chunk = 0;
    std::uint64_t offset_bytes = 0;
    std::size_t last_use = 0;  // length of the list when the place was released last
  };

  // compiler.cpp: the order of a step, and the primitives.
  void list_visits();
  void train_step();
  void evaluate();
  SlotId try_slot(Pool pool, Item item, std::uint32_t unit, std::uint32_t chunk, std::uint64_t bytes);
  SlotId slot(Pool pool, Item item, std::uint32_t unit, std::uint32_t chunk, std::uint64_t bytes);
  Slot slot_of(Pool pool, Item item, std::uint32_t unit, std::uint32_t chunk, std::uint64_t bytes) const;
  void release(Pool pool, SlotId id);
  void retire(
      Pool pool,
      SlotId id);      // given back some chunks later, so that the next fetch does not wait for its readers
  void age_retired();  // the next chunk's turn
  void release_retired();
  OpId transfer(OpKind kind, Lane lane, Access from, Access to, std::uint32_t unit, std::uint32_t chunk,
                bool predicated = false);
  Access whole(SlotId id, AccessMode mode, Role role = Role::none) const;
  // Several ranks; parameters spread over a shard group; sums that go to other replicas.
  bool has_ranks() const { return ranks_.ranks() > 1; }
  bool is_sharded() const { return ranks_.shape().shard_size() > 1; }
  bool is_replicated() const { return ranks_.shape().replicate_size() > 1; }
  bool owns(std::uint32_t chunk) const { return ranks_.owner(chunk) == rank_; }
  std::uint32_t rounds() const { return summands_.rounds(); }
  std::uint32_t first_of(std::uint32_t round) const { return round * ranks_.ranks(); }  // contribution
  bool is_last(std::uint32_t round) const { return round + 1 == rounds(); }
  // Programs over whose borders states are carried.
  bool is_periodic() const { return kind_ <= ProgramKind::drain; }
  bool updates_in_backward() const { return updates_ == UpdateTime::backward; }

  // compile_compute.cpp: pieces, forward, backward.
  void fetch_pieces(std::size_t visit);
  void gather(std::uint32_t unit, SlotId piece);
  void load_chunks(std::uint32_t unit, SlotId piece, const std::vector<std::uint32_t>& chunks);
  void all_gather(RankGroup group, std::uint32_t unit, SlotId slot, std::uint64_t element, NumelRange mine,
                  NumelRange whole);
  bool renews(std::uint32_t unit) const;
  void renew(std::uint32_t unit, SlotId piece);
  void renew_all();
  void release_pieces(std::size_t visit);
  SlotId piece_of(std::uint32_t unit) const;
  Access param_home(std::uint32_t chunk, AccessMode mode) const;
  void add_pieces(Op& op, const UnitShape& unit);
  void add_workspace(Op& op, std::uint64_t bytes);
  void forward(std::size_t visit);
  SlotId backward(std::size_t visit);
  void offload_activation(std::uint32_t unit);
  void fetch_activations(std::uint32_t consumer);

  // compile_gradient.cpp: gradients' way to their home, and sums' way to the update.
  void list_sums(std::uint32_t round);
  void fetch_sums(std::size_t needed);
  SlotId staged_sum(std::uint32_t chunk);
  void bring_sum(std::uint32_t chunk, bool predicated);
  void release_sum(std::uint32_t chunk);
  SlotId fold_home(std::uint32_t chunk) const;
  void reduce_gradient(std::uint32_t unit, std::uint32_t round, SlotId contribution);
  SlotId bring_summands(std::uint32_t unit, std::uint32_t round, SlotId contribution);
  SlotId exchange(RankGroup group, std::uint32_t unit, std::uint32_t round, SlotId sent, NumelRange all,
                  NumelRange mine);
  void accumulate(std::uint32_t unit, std::uint32_t round, SlotId contribution);
  SlotId own_summand(std::uint32_t unit, SlotId contribution);
  SlotId sum_group(std::uint32_t unit, std::uint32_t round, SlotId received, NumelRange range);
  void fold_chunk(std::uint32_t chunk, std::uint32_t round, SlotId source, SlotId sum_piece);
  void fill_sums(std::uint32_t unit, std::uint32_t round, SlotId source, SlotId sum_piece);
  void spread_sums(std::uint32_t unit, SlotId sum_piece);
  void end_round();

  // compile_update.cpp: states and updates of a step.
  void list_updates();
  void list_carried();
  void take_carried();
  bool carries(std::uint32_t chunk) const { return carried_at_[chunk] != kNone; }
  bool fetch_state(std::uint32_t chunk, Carry carry, bool predicated);
  bool fetch_own(std::uint32_t chunk);
  void fetch_states(std::size_t needed, std::uint64_t most_bytes = ~std::uint64_t{0});
  void fetch_next_states(std::size_t visit);
  double share_done(std::size_t first, std::size_t visit, std::size_t end) const;
  void parameters_out(std::uint32_t chunk, Op op, bool predicated);
  void update_units(std::uint32_t unit);
  void update_chunk(std::uint32_t chunk, SlotId sum);
  void write_state(std::uint32_t chunk, bool predicated);
  void release_state(std::uint32_t chunk);
  void write_pending();
  void write_states_in_memory();
  void commit_step();

  // compile_between.cpp: programs between steps.
  void drain();
  void materialize();
  void commit_states_in_memory();
  void visit_states();

  const ModelShape& model_;
  const std::vector<Chunk>& chunks_;
  const Placement& placement_;
  const Residents& residents_;
  const RankTable& ranks_;
  std::uint32_t rank_;
  std::uint32_t contributions_;
  Summands summands_;
  ProgramKind kind_;
  UpdateTime updates_;
  bool measuring_;
  bool ahead_;
  std::array<SlotPool, kPools> pools_;
  std::array<std::uint64_t, kTiers> tier_bytes_{};
  Emitter emitter_;
  std::uint32_t micro_batch_ = 0;

  // By unit: chunks whose states this rank holds (in a periodic program those that have a gradient), those it
  // owns, those of them that it folds, those whose parameters it keeps.
  std::vector<std::vector<std::uint32_t>> unit_chunks_, own_chunks_, folded_chunks_, kept_chunks_;
  std::vector<bool> trains_;  // by unit: some chunk of it, of any rank, has a gradient
  std::vector<Visit> visits_;
  std::vector<double> flops_before_;  // of all visits before this one; one more than visits
  std::vector<PieceNeed> needs_;
  std::size_t next_need_ = 0;
  std::vector<LivePiece> live_pieces_;    // by unit
  std::vector<SlotId> outputs_;           // by unit: activation on the device, of the current micro-batch
  std::vector<SlotId> saved_;             // by unit
  std::vector<SlotId> fetched_;           // by unit: activation brought back
  std::uint32_t next_fetched_ = 0;        // next unit whose output is to be brought back, counting down
  std::vector<bool> renewed_;             // by unit: its parameters are this step's on this rank
  std::vector<SlotId> contributed_;       // contributions kept to the end of the round (stage 1)
  SlotId output_grad_ = kNone;            // gradient of the output of the unit whose backward is next
  std::vector<SlotId> shared_grads_;      // by unit that owns the shared piece
  std::vector<std::uint32_t> sum_order_;  // chunks whose sums come to the host, in the order of need
  std::size_t next_sum_ = 0;
  bool sums_pending_ = false;  // sum_order_ is that of the pending updates
  std::vector<SlotId> sums_;   // by chunk: staged sum
  std::vector<OpId> folds_;

  std::vector<std::uint32_t> update_order_;  // all chunks held
  std::size_t next_update_ = 0;              // in update_order_
  std::size_t next_state_ = 0;               // in update_order_: next to be fetched
  std::vector<SlotId> states_;               // by chunk: staged or resident state
  std::vector<Carried> carried_;             // in update order
  std::vector<std::uint32_t> carried_at_;    // by chunk: index in carried_, else kNone
  std::vector<Carried> next_carried_;        // in the order in which they are fetched for the step after
  std::size_t carried_out_ = 0;              // of next_carried_
  std::uint64_t ahead_bytes_ = 0;            // of all states fetched so far
  std::vector<OpId> written_;                // what the commit waits for
  OpId commit_ = kNone;
  std::size_t kept_states_ = 0;  // how many retired state slots wait before the first is used again
  std::array<std::deque<SlotId>, kPools> retired_;
};

}  // namespace terrace
