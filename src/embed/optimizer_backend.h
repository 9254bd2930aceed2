// What stands behind terrace::Optimizer: one engine, whose programs a thread of its own runs.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "src/embed/external_executor.h"
#include "src/embed/job_thread.h"
#include "src/embed/tensor_table.h"
#include "src/engine/commit_policy.h"
#include "src/engine/engine.h"

namespace terrace {

struct BackendOptions {
  StoreUse use = StoreUse::create_or_resume;
  std::uint64_t adversarial_seed = 0;
  std::shared_ptr<IoHooks> io_hooks = nullptr;  // tests inject faults here
  UnitBounds bounds = {};
};

// The calls are those of Optimizer, with its contracts. The program of the next step (which also does what
// the last one left) is begun by the first call that belongs to that step; docs/decisions/0007-embedding.md.
class OptimizerBackend {
 public:
  OptimizerBackend(const Config& config, std::vector<OptimizerTensor> tensors, const BackendOptions& options);
  ~OptimizerBackend();

  std::size_t tensor(std::string_view name) const { return tensors_.index_of(name); }
  std::uint64_t steps() const { return steps_; }
  const std::string& program_state() const { return resumed_state_; }
  Engine& engine() { return *engine_; }
  const Plan& plan() const { return engine_->plan(); }

  void wait_for_parameters(std::size_t tensor);
  void wait_for_parameters();
  void gradient_ready(std::size_t tensor, const void* gradient, ElementType type);
  void end_contribution();
  void announce_step(const OptimizerStep& step);
  OptimizerVerdict step(const OptimizerStep& step);
  OptimizerVerdict step();
  void save();
  std::string state_hash();

 private:
  using Lock = std::unique_lock<std::mutex>;

  void check_request(const OptimizerStep& step) const;
  void require_usable(const Lock&) const;
  void require_between_steps(const Lock&, const char* call) const;
  void begin_program(const Lock&);
  void announce(const Lock&, const OptimizerStep& step);
  OptimizerVerdict end_step(Lock& lock);
  void settle(Lock& lock);
  void run_job(Lock& lock, std::function<void()> job);
  void run_program(ProgramKind kind);
  void ended_program(const Lock&);

  const double clip_norm_;
  const TensorTable tensors_;
  std::unique_ptr<ExternalExecutor> executor_;
  std::unique_ptr<Engine> engine_;  // after what its runtime calls
  std::unique_ptr<CommitPolicy> commits_;
  std::string resumed_state_;

  std::mutex control_;            // held by the calls that one thread makes
  mutable std::mutex mutex_;      // guards what follows, but for inputs_ and outcome_ while a program runs
  std::exception_ptr failure_;    // of the work behind; every call repeats it
  bool begun_ = false;            // the next step's program
  bool marked_ = false;           // the next step has been given something: it cannot be skipped
  bool announced_ = false;        // its hyperparameters are there
  bool ending_ = false;           // a contribution or step is being ended, or what is between steps runs
  bool commits_in_it_ = false;    // the program under way commits the last step
  std::uint64_t steps_ = 0;       // ended by the program
  std::uint64_t iterations_ = 0;  // train programs run, skipped ones too: what the store counts
  std::uint64_t committed_ = 0;   // step
  std::string run_state_;         // of step steps_
  StepInputs inputs_;
  StepOutcome outcome_;

  JobThread thread_;  // last: ends before what it works with goes
};

}  // namespace terrace
