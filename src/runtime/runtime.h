// Runs step programs: one thread a lane, operations in list order, each after what it waits for.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/extent_store.h"
#include "io/scratch.h"
#include "kernels/cpu/adamw.h"
#include "src/collectives/rank_groups.h"
#include "src/device/device.h"
#include "src/memory/slot_table.h"
#include "src/optimizer/chunk_update.h"
#include "src/optimizer/verdict.h"
#include "src/plan/plan.h"
#include "src/plan/simulate.h"
#include "src/runtime/executor.h"
#include "src/runtime/lane_threads.h"
#include "src/runtime/ready_program.h"

namespace terrace {

// What a runtime works with; all must outlive it. `store` is null where nothing is kept on disk, `scratch`
// where the plan has no scratch extents.
struct RuntimeParts {
  const ModelShape* model = nullptr;
  const Plan* plan = nullptr;
  Device* device = nullptr;
  const Arenas* arenas = nullptr;
  Executor* executor = nullptr;
  IoQueue* queue = nullptr;
  ExtentStore* store = nullptr;
  Scratch* scratch = nullptr;
  std::size_t first_scratch_extent = 0;  // the plan's extents are numbered from here
  RankGroups* groups = nullptr;          // where there are several ranks
  bool ranks_are_processes = false;      // each with a handle of its own on the one store
  // Fills the master parameters of a chunk (numel floats, padding included) with their initial values.
  std::function<void(std::uint32_t chunk, float* master)> initial_master;
};

struct RuntimeOptions {
  bool adversarial = false;  // the device was made so too: operations run as late as the program allows
  std::uint64_t adversarial_seed = 0;  // in which order the lanes are waited for; 0: compute first
  // In the program of this kind, the operation that is waited for before all others (kNone: none).
  ProgramKind adversarial_kind = ProgramKind::train;
  OpId adversarial_first = kNone;
  // Tests: called on the lane's thread before an operation runs; it may throw or wait.
  std::function<void(std::uint32_t rank, const Op&)> before_operation = {};
};

// What a commit keeps beside the chunks.
struct CommitInputs {
  std::uint64_t step = 0;  // iterations done: of train_commit those before the step that is run
  std::string run_state;   // sampler, schedule, loss scale and counts as they were then
};

// What one step is run with.
struct StepInputs {
  std::uint64_t step = 0;          // iterations done when it ends: 1 for the first
  std::vector<AdamWHyper> groups;  // by parameter group
  double clip_norm = 0;            // 0 = no clipping
  double loss_scale = 1;           // what the gradient is larger by
  CommitInputs commit;             // of train_commit and commit
};

// A chunk's state as a visitor sees it: one pointer a stream (null where the chunk lacks it: all zeros), and
// Adam's step count of each segment.
struct ChunkState {
  std::uint32_t chunk = 0;
  std::array<const float*, 3> streams{};
  std::span<const std::uint64_t> segment_steps;
};

struct LaneStats {
  std::uint64_t operations = 0;
  std::uint64_t bytes = 0;
  double flops = 0;
  double busy_us = 0;  // nvme, which counts the store lane too: with at least one transfer under way
};

struct StepOutcome {
  ProgramKind kind = ProgramKind::train;
  Verdict verdict;
  double wall_us = 0;
  std::array<LaneStats, kLanes> lanes{};
  // By operation of the program, from its start; disk lanes: from the start of the transfer to its
  // completion. Both 0 where the operation was left out.
  std::vector<OpTime> ops;
};

// A train program leaves the end of its step pending (program.h); the next train, train_commit or drain does
// it, with the step's own inputs and verdict, which the runtime keeps. The other programs want nothing
// pending.
//
// Several ranks run the same kind of program at the same time, each its own; their programs meet in
// collectives, and a commit waits for all of them.
//
// Thread contract: run() and the accessors from one thread; run() blocks until the program has ended on every
// lane. A failure on one lane stops the others, and the other ranks; the first cause is rethrown once, when
// nothing is under way any more. After a failure only the destructor may be called.
class Runtime {
 public:
  // Throws unsupported where several ranks could not agree on which tensors a step leaves (executor.h).
  Runtime(const RuntimeParts& parts, const RuntimeOptions& options = {});
  ~Runtime();

  // Throws invalid_argument when a gradient is not finite and the step's updates could not wait for that
  // (UpdateTime::backward): the step is never committed.
  StepOutcome run(ProgramKind kind, const StepInputs& inputs);

  // Does what is pending, so that homes and store hold the newest data. Nothing when there was nothing to do.
  std::optional<StepOutcome> drain();

  // Called for every chunk by ProgramKind::visit, on the optimizer lane, in chunk order.
  std::function<void(const ChunkState&)> visitor;

 private:
  void issue(Lane lane);
  void issue_transfer(OpId id);
  void run_adversarial();
  EventPtr event_of(OpId id);
  void set_event(OpId id, EventPtr event);
  void stop(std::exception_ptr cause);
  void execute(OpId id);
  void execute_now(const Op& op, std::vector<Lease>& leases);
  void compute(const Op& op, const std::vector<Lease>& leases);
  void add_up(const Op& op, const std::vector<Lease>& leases);
  void fold(const Op& op, const std::vector<Lease>& leases);
  void decide();
  void commit();
  // collect.cpp
  void all_gather(const Op& op);
  void reduce_scatter(const Op& op);
  ExactSum join_ranks(const ExactSum& own);
  bool touched(std::uint32_t unit, std::uint32_t tensor) const;
  std::uint32_t stream_of(const Op& op) const;
  const StepInputs& inputs_of(const Op& op) const;
  void update(const Op& op, const std::vector<Lease>& leases);
  // Starts a transfer; `done` is called once, possibly before this returns. Returns its ticket (0: nothing
  // under way).
  IoTicket start_transfer(const Op& op, std::vector<Lease>& leases,
                          std::function<void(std::exception_ptr)> done);
  void initialise_state(std::uint32_t chunk, std::byte* state);
  std::vector<Lease> lease_all(const Op& op);

  RuntimeParts parts_;
  RuntimeOptions options_;
  std::vector<std::unique_ptr<ReadyProgram>> programs_;  // by ProgramKind
  std::array<std::unique_ptr<Stream>, kLanes> streams_;
  std::vector<std::vector<std::uint64_t>> segment_steps_;  // by chunk
  std::vector<std::size_t> first_block_;                   // of each chunk in block_sums_
  std::vector<double> block_sums_;
  std::vector<std::vector<ElementRange>> frozen_;  // by chunk: elements of frozen tensors
  std::vector<std::size_t> first_tensor_;          // of each unit in touched_
  // With several ranks: was the tensor touched on any of them? Of the step under way, from its verdict on.
  std::vector<std::uint8_t> touched_;

  // The step before, as far as a program has still to do its end. Constant while a program runs.
  struct Pending {
    StepInputs inputs;
    Verdict verdict;
    std::vector<std::uint8_t> touched;
  };
  std::optional<Pending> pending_;

  // Of the run under way.
  ReadyProgram* current_ = nullptr;
  const StepInputs* inputs_ = nullptr;
  StepOutcome outcome_;
  std::chrono::steady_clock::time_point start_;
  std::mutex mutex_;
  std::condition_variable issued_;
  std::vector<EventPtr> events_;     // by operation; null until issued. Guarded by mutex_
  std::exception_ptr failure_;       // the first. Guarded by mutex_
  std::atomic<bool> failed_{false};  // failure_ is set

  LaneThreads threads_;  // last: stops before the rest is destroyed
};

}  // namespace terrace
