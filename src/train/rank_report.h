// What each rank of a run of several took, lost and sent, counted step by step.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/collectives/collective.h"
#include "src/data/sampler.h"
#include "src/plan/model_shape.h"
#include "terrace/train.h"

namespace terrace {

// Thread contract: one thread.
class RankReport {
 public:
  explicit RankReport(std::uint32_t ranks)
      : ranks_(ranks), windows_(ranks), loss_sums_(ranks), targets_(ranks) {}

  // Before the step at the sampler's position: counts the windows that each rank's contributions k = rank,
  // rank + N, ... hold. Of the first epoch that the run trains whole, or of the last one so far.
  void take(const DistributedSampler& sampler);
  // After it: the real targets of each rank, and what rank 0 had sent in all before and after the step.
  void add(const StepReport& step, std::span<const std::uint64_t> targets,
           const CommunicatorStats::Traffic& before, const CommunicatorStats::Traffic& after);

  // For people; empty with one rank or without a step.
  std::string text(const DistributedSampler& sampler, const ModelShape& model) const;

 private:
  std::uint32_t ranks_;
  std::uint64_t epoch_ = 0;
  std::vector<std::uint64_t> windows_;  // of that epoch, by rank
  bool whole_ = false;                  // all of them are counted
  std::uint64_t steps_ = 0;
  StepReport first_, last_;
  // Over the steps of the epoch that last_ began in, by rank.
  std::uint64_t step_epoch_ = 0;
  std::vector<double> loss_sums_;
  std::vector<std::uint64_t> targets_;
  CommunicatorStats::Traffic sent_;
};

}  // namespace terrace
