// Everything that a run holds beside its executor, from the store to the lanes, opened in the order that
// keeps promises: plan, check, then act. Training and embedding both stand on it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "io/extent_store.h"
#include "io/io_queue.h"
#include "io/scratch.h"
#include "src/plan/plan.h"
#include "src/runtime/runtime.h"
#include "terrace/config.h"

namespace terrace {

// What is run. `identity` and `numerics` are JSON objects that the store keeps: two runs on one store must
// agree on every key of the first (a difference is refused) and should on the second (it is said in the log).
struct EngineModel {
  ModelShape shape;
  std::string identity;
  std::string numerics;
  std::string says;  // who names the identity, for messages: "the configuration says"
};

struct EngineOptions {
  bool resume = false;  // false: a store that exists is refused; true: one that does not
  std::uint64_t adversarial_seed = 0;
  std::shared_ptr<IoHooks> io_hooks = nullptr;  // tests inject faults here
};

// Thread contract: one thread at a time.
class Engine {
 public:
  // Plans, proves the programs legal, allocates, creates or opens the store. Throws terrace::Error; nothing
  // is left half made in the store's place. `config` is not kept.
  Engine(const Config& config, EngineModel model, const EngineOptions& options);
  ~Engine();

  // Brings the parameters into their homes: from then on a step may run. `initial_master` fills a chunk's
  // master parameters (numel floats, padding included and zero before). `executor` must outlive this.
  void start(Executor& executor, std::function<void(const Chunk& chunk, float* master)> initial_master);

  const Plan& plan() const { return plan_; }
  const ModelShape& model() const { return model_.shape; }
  Runtime& runtime() { return *runtime_; }       // after start()
  ExtentStore* store() { return store_.get(); }  // null where nothing is kept on disk
  // What the last commit kept beside the chunks; nothing where none was made.
  std::optional<std::string> run_state() const;
  std::uint64_t locked_bytes() const { return arenas_->locked_bytes(); }

  // Over every state, by a visit of all chunks. Wants nothing pending.
  std::string state_hash();

  // For use before start(): the host arena, idle until then.
  std::span<std::byte> host_arena() const { return arenas_->host().span(); }

 private:
  void make_plan_that_fits(const Config& config, std::uint64_t held_bytes);
  void open_storage(const Config& config, const EngineOptions& options, bool exists);
  StoreShape store_shape(const Config& config) const;

  EngineModel model_;
  Plan plan_;
  RuntimeOptions runtime_options_;
  std::function<void(const Chunk&, float*)> initial_master_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Arenas> arenas_;
  std::unique_ptr<IoQueue> queue_;
  std::unique_ptr<Scratch> scratch_;
  std::unique_ptr<ExtentStore> store_;
  std::unique_ptr<Runtime> runtime_;  // last: stops before what it works with goes
};

}  // namespace terrace
