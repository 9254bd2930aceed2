// Everything that a run holds beside its executor, from the store to the lanes, opened in the order that
// keeps promises: plan, check, then act. Training and embedding both stand on it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "io/extent_store.h"
#include "io/io_queue.h"
#include "io/scratch.h"
#include "src/base/process_memory.h"
#include "src/engine/host_overhead.h"
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
  bool compares_numerics = true;  // false: no step is run (sampling), so a difference is not said
};

// Thread contract: one thread at a time.
class Engine {
 public:
  // Plans, proves the programs legal, allocates, creates or opens the store. Throws terrace::Error; nothing
  // is left half made in the store's place. `config` is not kept.
  Engine(const Config& config, EngineModel model, const EngineOptions& options);
  ~Engine();

  // Brings the parameters into their homes: from then on a step may run. `executor` must outlive this.
  void start(Executor& executor);

  const Plan& plan() const { return plan_; }
  const ModelShape& model() const { return model_.shape; }
  Runtime& runtime() { return *runtime_; }       // after start()
  ExtentStore* store() { return store_.get(); }  // null where nothing is kept on disk
  // What the last commit kept beside the chunks; nothing where none was made.
  std::optional<std::string> run_state() const;
  std::uint64_t locked_bytes() const { return arenas_->locked_bytes(); }
  // The host arena; idle before start().
  std::span<std::byte> host_memory() const { return arenas_->host().span(); }
  // What the ledger promises of this process's memory: device and host together.
  std::uint64_t ledger_bytes() const;
  // Sampled while the engine opens and starts; whoever runs steps samples at their ends.
  PeakMemory& memory() { return memory_; }

  // A chunk's initial master parameters; `master` has chunk.numel elements, zeros where no tensor is.
  void fill_master(const Chunk& chunk, float* master) const;
  // Over every state, by a visit of all chunks. Wants nothing pending.
  std::string state_hash();

 private:
  void make_plan_that_fits(const Config& config, std::uint64_t held_bytes);
  void open_storage(const Config& config, const EngineOptions& options, bool exists);
  StoreShape store_shape(const Config& config) const;

  PeakMemory memory_;
  EngineModel model_;
  Plan plan_;
  RuntimeOptions runtime_options_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Arenas> arenas_;
  std::unique_ptr<IoQueue> queue_;
  std::unique_ptr<Scratch> scratch_;
  std::unique_ptr<ExtentStore> store_;
  std::unique_ptr<Runtime> runtime_;  // last: stops before what it works with goes
};

}  // namespace terrace
