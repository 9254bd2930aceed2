// The compiler's working state: walks a step in order and emits its operations. Internal to src/plan;
// compile.h is the way in.
#pragma once

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
  // One visit of the compute lane to a unit (backward with its recomputation is one visit).
  struct Visit {
    bool forward = true;
    std::uint32_t unit = 0;
    std::uint32_t micro_batch = 0;
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

  // compiler.cpp: the order of a step, and the primitives.
  void list_visits();
  void train_step();
  void evaluate();
  SlotId try_slot(Pool pool, Item item, std::uint32_t unit, std::uint32_t chunk, std::uint64_t bytes);
  SlotId slot(Pool pool, Item item, std::uint32_t unit, std::uint32_t chunk, std::uint64_t bytes);
  void release(Pool pool, SlotId id);
  void retire(Pool pool, SlotId id);  // released one step later, so that the next fetch does not wait for it
  void release_retired();
  OpId transfer(OpKind kind, Lane lane, Access from, Access to, std::uint32_t unit, std::uint32_t chunk,
                bool predicated = false);
  Access whole(SlotId id, AccessMode mode, Role role = Role::none) const;

  // compile_compute.cpp: pieces, forward, backward.
  void fetch_pieces(std::size_t visit);
  void gather(std::uint32_t unit, SlotId piece);
  void release_pieces(std::size_t visit);
  SlotId piece_of(std::uint32_t unit) const;
  Access param_home(std::uint32_t chunk, AccessMode mode) const;
  void add_pieces(Op& op, const UnitShape& unit);
  void add_workspace(Op& op, std::uint64_t bytes);
  void forward(std::size_t visit);
  void backward(std::size_t visit);
  void offload_activation(std::uint32_t unit);
  void fetch_activations(std::uint32_t consumer);

  // compile_update.cpp: gradients' way to their home, updates, materialisation.
  void list_sums(std::uint32_t micro_batch);
  void fetch_sums(std::size_t needed);
  void reduce_gradient(std::uint32_t unit, SlotId contribution);
  void update_all();
  void materialize();
  void commit_resident();
  void visit_states();
  void fetch_states(std::size_t needed);
  std::optional<SlotId> fetch_state(std::uint32_t chunk, bool with_sum);
  void parameters_out(std::uint32_t chunk, Op op, bool predicated);

  const ModelShape& model_;
  const std::vector<Chunk>& chunks_;
  const Placement& placement_;
  const Residents& residents_;
  std::uint32_t contributions_;
  ProgramKind kind_;
  bool measuring_;
  bool ahead_;
  std::array<SlotPool, kPools> pools_;
  std::array<std::uint64_t, kTiers> tier_bytes_{};
  Emitter emitter_;
  std::uint32_t micro_batch_ = 0;

  std::vector<std::vector<std::uint32_t>> unit_chunks_;
  std::vector<Visit> visits_;
  std::vector<PieceNeed> needs_;
  std::size_t next_need_ = 0;
  std::vector<LivePiece> live_pieces_;    // by unit
  std::vector<SlotId> outputs_;           // by unit: activation on the device, of the current micro-batch
  std::vector<SlotId> saved_;             // by unit
  std::vector<SlotId> fetched_;           // by unit: activation brought back
  std::uint32_t next_fetched_ = 0;        // next unit whose output is to be brought back, counting down
  SlotId output_grad_ = kNone;            // gradient of the output of the unit whose backward is next
  std::vector<SlotId> shared_grads_;      // by unit that owns the shared piece
  std::vector<std::uint32_t> sum_order_;  // chunks whose sums come from nvme, in the order of their folds
  std::size_t next_sum_ = 0;
  std::vector<SlotId> sums_;  // by chunk: staged sum
  std::vector<OpId> folds_;
  OpId verdict_ = kNone;
  std::size_t next_state_ = 0;
  std::vector<SlotId> states_;  // by chunk: staged or resident state
  std::deque<std::pair<Pool, SlotId>> retired_;
};

}  // namespace terrace
