// Everything a run holds, from the store to the lanes, opened in the order that keeps promises: plan, check,
// then act.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/extent_store.h"
#include "io/io_queue.h"
#include "io/scratch.h"
#include "src/base/process_memory.h"
#include "src/checkpoint/run_state.h"
#include "src/model/gpt_executor.h"
#include "src/plan/plan.h"
#include "src/runtime/runtime.h"
#include "src/train/setup.h"
#include "terrace/config.h"
#include "terrace/train.h"

namespace terrace {

struct SessionOptions {
  bool resume = false;
  std::uint64_t adversarial_seed = 0;
  std::shared_ptr<IoHooks> io_hooks = nullptr;  // tests inject faults here
};

// After construction the parameters are in their homes and a step may run. Throws terrace::Error; nothing is
// left half made in the store's place. Thread contract: one thread.
class Session {
 public:
  Session(const Config& config, const SessionOptions& options);
  ~Session();

  const Plan& plan() const { return plan_; }
  Runtime& runtime() { return *runtime_; }
  GptExecutor& executor() { return *executor_; }
  const ModelSpec& spec() const { return spec_; }
  const ModelShape& model() const { return model_; }
  // Where the last commit left the run; nothing for a new one.
  const std::optional<RunState>& resumed() const { return resumed_; }
  std::uint64_t locked_bytes() const { return arenas_->locked_bytes(); }
  std::span<const std::byte> host_memory() const { return arenas_->host().span(); }
  // What the ledger promises of this process's memory: device and host together.
  std::uint64_t ledger_bytes() const;
  // The session samples while it opens; whoever runs steps samples at their ends.
  PeakMemory& memory() { return memory_; }

  // Over every state, by a visit of all chunks.
  std::string state_hash();

 private:
  std::uint64_t warm_up_executor(const Config& config);
  void make_plan_that_fits(const Config& config, std::uint64_t held_bytes, std::uint64_t library_bytes);
  void open_storage(const Config& config, const SessionOptions& session_options, bool exists);
  StoreShape store_shape(const Config& config) const;

  PeakMemory memory_;
  ModelSpec spec_;
  ModelShape model_;
  Plan plan_;
  std::optional<RunState> resumed_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Arenas> arenas_;
  std::unique_ptr<IoQueue> queue_;
  std::unique_ptr<Scratch> scratch_;
  std::unique_ptr<ExtentStore> store_;
  std::unique_ptr<GptExecutor> executor_;
  std::vector<UnitTensors> tensors_;
  std::unique_ptr<Runtime> runtime_;  // last: stops before what it works with goes
};

// train() with a session's options, for tests.
TrainResult train(const Config& config, const TrainOptions& options, const SessionOptions& session);

}  // namespace terrace
