// An engine that runs the in-house model.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/checkpoint/run_state.h"
#include "src/data/sampler.h"
#include "src/engine/engine.h"
#include "src/model/gpt_executor.h"
#include "src/train/executor_probe.h"
#include "src/train/setup.h"
#include "terrace/config.h"
#include "terrace/train.h"

namespace terrace {

using SessionOptions = EngineOptions;

// After construction the parameters are in their homes and a step may run. Throws terrace::Error; nothing is
// left half made in the store's place. Thread contract: one thread.
class Session {
 public:
  // `compares_ranks`: room for compare_ranks() is in the ledger; throws invalid_argument where there is
  // nothing to compare, or too much.
  Session(const Config& config, const SessionOptions& options, bool compares_ranks = false);
  ~Session();

  Engine& engine() { return *engine_; }
  GptExecutor& executor(std::uint32_t local = 0) { return *executors_[local]; }
  ExecutorProbe& probe(std::uint32_t local = 0) { return *probes_[local]; }  // around that rank's executor

  // Hands each rank its contributions of the step at the sampler's position, and every rank the divisor of
  // the mean. Returns that: the real targets of the whole step; 0: there is nothing to train on, and no
  // divisor.
  std::uint64_t load_step(const DistributedSampler& sampler);
  // On every rank: what gradients are larger by.
  void set_loss_scale(double scale);
  // Sums of the losses of the step just run, by contribution.
  std::vector<double> loss_sums();
  // From these, its mean loss on each rank of the run, over the targets that the rank was handed; NaN without
  // one. Empty for one rank.
  std::vector<double> rank_losses(std::span<const double> loss_sums) const;
  // Real targets that each rank of the run was handed by the last load_step().
  const std::vector<std::uint64_t>& rank_targets() const { return rank_targets_; }
  // Mean loss of the next `batches` contributions of `sampler`, each rank one at a time, folded in their
  // order. NaN without targets.
  double evaluate(DistributedSampler& sampler, std::uint64_t batches);
  const Plan& plan() const { return engine_->plan(); }
  const ModelSpec& spec() const { return spec_; }
  const ModelShape& model() const { return engine_->model(); }
  // Where the last commit left the run; nothing for a new one.
  const std::optional<RunState>& resumed() const { return resumed_; }

 private:
  std::uint64_t warm_up_executors(const Config& config);

  ModelSpec spec_;
  std::uint32_t contributions_;
  std::optional<RunState> resumed_;
  std::vector<std::uint64_t> rank_targets_;              // of the step last loaded, by rank of the run
  std::vector<std::unique_ptr<GptExecutor>> executors_;  // of the local ranks
  std::vector<std::unique_ptr<ExecutorProbe>> probes_;   // around them: what the engine runs
  std::unique_ptr<Engine> engine_;                       // last: stops before what it works with goes
};

// train() with a session's options, for tests.
TrainResult train(const Config& config, const TrainOptions& options, const SessionOptions& session);

}  // namespace terrace
