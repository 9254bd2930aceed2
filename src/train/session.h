// An engine that runs the in-house model.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/checkpoint/run_state.h"
#include "src/data/sampler.h"
#include "src/engine/engine.h"
#include "src/model/gpt_executor.h"
#include "src/train/setup.h"
#include "terrace/config.h"
#include "terrace/train.h"

namespace terrace {

using SessionOptions = EngineOptions;

// After construction the parameters are in their homes and a step may run. Throws terrace::Error; nothing is
// left half made in the store's place. Thread contract: one thread.
class Session {
 public:
  Session(const Config& config, const SessionOptions& options);
  ~Session();

  Engine& engine() { return *engine_; }
  GptExecutor& executor(std::uint32_t local = 0) { return *executors_[local]; }

  // Hands each rank its contributions of the step at the sampler's position, and every rank the divisor of
  // the mean. Returns that: the real targets of the whole step; 0: there is nothing to train on, and no
  // divisor.
  std::uint64_t load_step(const DistributedSampler& sampler);
  // On every rank: what gradients are larger by.
  void set_loss_scale(double scale);
  // Sums of the losses of the step just run, by contribution.
  std::vector<double> loss_sums();
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
  std::vector<std::unique_ptr<GptExecutor>> executors_;  // of the local ranks
  std::unique_ptr<Engine> engine_;                       // last: stops before what it works with goes
};

// train() with a session's options, for tests.
TrainResult train(const Config& config, const TrainOptions& options, const SessionOptions& session);

}  // namespace terrace
