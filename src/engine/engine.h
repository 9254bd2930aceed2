// Everything that a run holds beside its executor, from the store to the lanes, opened in the order that
// keeps promises: plan, check, then act. Training and embedding both stand on it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/extent_store.h"
#include "io/io_queue.h"
#include "io/scratch.h"
#include "src/base/process_memory.h"
#include "src/collectives/communicator.h"
#include "src/engine/alike.h"
#include "src/engine/host_overhead.h"
#include "src/engine/initial_broadcast.h"
#include "src/engine/rank_threads.h"
#include "src/plan/plan.h"
#include "src/runtime/runtime.h"
#include "terrace/config.h"

namespace terrace {

// Fills `out` with the initial values of elements [begin, end) of a unit's tensor (by its place in the unit).
using InitialValues = std::function<void(std::uint32_t unit, std::uint32_t tensor, std::uint64_t begin,
                                         std::uint64_t end, float* out)>;

// What is run. `identity` and `numerics` are JSON objects that the store keeps: two runs on one store must
// agree on every key of the first (a difference is refused) and should on the second (it is said in the log).
struct EngineModel {
  ModelShape shape;
  std::string identity;
  std::string numerics;
  std::string says;       // who names the identity, for messages: "the configuration says"
  std::string resume_by;  // how a store that exists is resumed, for messages: "--resume"
  InitialValues initial;  // from any thread, several at once
  // Where set, rank r first draws the values that own_initial(r) gives, and rank 0's, which are those of
  // `initial`, are broadcast before anything is read. One rank draws `initial` alone.
  std::function<InitialValues(std::uint32_t rank)> own_initial = {};
  // What the host holds beside its arena, for chunks of that size.
  std::function<HostOverhead(std::uint64_t chunk_numel)> overhead;
  // Loads and tries what the run will use and gives the overhead as it then is, at least the estimate that it
  // is told. Called when the plan fits by that estimate, so that no size that fits nothing is tried. May be
  // empty.
  std::function<HostOverhead(const HostOverhead& estimate)> measured = {};
};

struct EngineOptions {
  bool resume = false;  // false: a store that exists is refused; true: one that does not
  std::uint64_t adversarial_seed = 0;
  std::shared_ptr<IoHooks> io_hooks = nullptr;  // tests inject faults here
  // As in RuntimeOptions.
  std::function<void(std::uint32_t rank, const Op&)> before_operation = {};
  std::function<void(const std::string& what)> on_stuck = {};  // as in TrainOptions
  bool compares_numerics = true;  // false: no step is run (sampling), so a difference is not said
  // Where ranks are processes: gives this process's rank of their world. Empty: all ranks are threads of this
  // one.
  std::function<std::unique_ptr<Communicator>(const CommunicatorOptions&)> make_world = {};
  // What those processes must have alike: a difference is refused before anything else is done.
  Settings process_settings = {};
};

// ranks.time_limit_s and ranks.link_gbps.
CommunicatorOptions communicator_options(const Config& config);

// Thread contract: one thread at a time.
class Engine {
 public:
  // Plans, proves the programs legal, allocates, creates or opens the store. Throws terrace::Error; nothing
  // is left half made in the store's place. `config` is not kept.
  Engine(const Config& config, EngineModel model, const EngineOptions& options);
  ~Engine();

  // Brings the parameters into their homes: from then on a step may run. One executor a rank; they must
  // outlive this.
  void start(std::span<Executor* const> executors);

  // Runs the ranks' programs of that kind, all at once, and returns when all have ended. The outcome is rank
  // 0's; the verdict is every rank's. Errors as Runtime says, with the rank that failed first where there are
  // several.
  StepOutcome run(ProgramKind kind, const StepInputs& inputs);
  // Does what is pending. Nothing when there was nothing to do.
  std::optional<StepOutcome> drain();

  std::uint32_t ranks() const { return plan().ranks.ranks(); }
  // Those of this process: first_rank(), first_rank() + 1, ...
  std::uint32_t local_ranks() const { return static_cast<std::uint32_t>(ranks_.size()); }
  std::uint32_t first_rank() const { return plan().rank; }
  const Plan& plan(std::uint32_t local = 0) const { return ranks_[local].plan; }

  // For what a run does between programs: the sums, or the largest, over processes (of one: what is given).
  // Every process calls, in one order. Errors as Communicator's.
  std::uint64_t sum_of_processes(std::uint64_t value);
  std::uint64_t largest_of_processes(std::uint64_t value);
  HostOverhead largest_of_processes(const HostOverhead& overhead);  // line by line
  // Numbers of which each is 0 on all processes but one.
  std::vector<double> join_processes(std::vector<double> values);
  const ModelShape& model() const { return model_.shape; }
  ExtentStore* store() { return store_.get(); }  // null where nothing is kept on disk
  // What the last commit kept beside the chunks; nothing where none was made.
  std::optional<std::string> run_state() const;
  std::uint64_t locked_bytes() const { return host_->locked_bytes(); }
  // The host arena, of all ranks; idle before start().
  std::span<std::byte> host_memory() const { return host_->span(); }
  // What the ledger promises of this process's memory: the devices and the host together.
  std::uint64_t ledger_bytes() const;
  // Sampled while the engine opens and starts; whoever runs steps samples at their ends.
  PeakMemory& memory() { return memory_; }

  // A chunk's initial master parameters; `master` has chunk.numel elements, zeros where no tensor is.
  void fill_master(const Chunk& chunk, float* master) const;
  // Over every state, by a visit of all chunks on every rank that holds them. Wants nothing pending. Throws
  // internal where two ranks hold different states of one chunk.
  std::string state_hash();
  // Calls visit(rank, state) for every chunk that a local rank holds, the ranks one after another. Wants
  // nothing pending.
  void visit(const std::function<void(std::uint32_t rank, const ChunkState&)>& visit);
  // What the first local rank has sent to other ranks in collectives so far; 0 with one rank.
  std::uint64_t sent_bytes() const { return sent().sent_bytes; }
  // The same with the calls that move data (no barriers, no splits), and what came in.
  CommunicatorStats::Traffic sent() const;

 private:
  struct Rank {
    Plan plan;
    std::unique_ptr<Device> device;
    std::unique_ptr<Arenas> arenas;
    RankGroups groups;
    std::size_t first_scratch_extent = 0;
    InitialChunks initial;  // received; as long as a program may read a chunk's initial values again
    std::unique_ptr<Runtime> runtime;
  };

  void make_plans_that_fit(const Config& config, std::uint32_t cut_ranks, std::uint64_t held_bytes);
  void allocate(const Config& config, const EngineOptions& options);
  void make_groups(const Config& config);
  void open_store(const Config& config, bool exists, const std::vector<VolumePath>& room);
  Communicator* processes() const;
  void open_storage(const Config& config, const EngineOptions& options, bool exists);
  void receive_initial(Rank& rank);
  void drop_initial();
  StoreShape store_shape(const Config& config, std::uint32_t cut_ranks) const;

  PeakMemory memory_;
  EngineModel model_;
  RuntimeOptions runtime_options_;
  std::unique_ptr<Communicator> world_;     // of processes, until the groups are made
  std::uint64_t fullest_device_bytes_ = 0;  // arenas of all ranks, as planned
  std::uint64_t all_host_arenas_bytes_ = 0;
  std::shared_ptr<AlignedMemory> host_;
  std::unique_ptr<IoQueue> queue_;
  std::unique_ptr<Scratch> scratch_;
  std::unique_ptr<ExtentStore> store_;
  std::vector<Rank> ranks_;               // after what they work with
  std::unique_ptr<RankThreads> threads_;  // last: the ranks' groups end on their threads
};

}  // namespace terrace
