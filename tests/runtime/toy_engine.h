// A runtime on a toy model: every output of every operation depends on every byte of every operand.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/plan/plan.h"
#include "src/runtime/runtime.h"

namespace terrace {

// Fills what it writes from one weighted sum over all that it reads.
class ToyExecutor : public Executor {
 public:
  explicit ToyExecutor(const ModelShape& model) : model_(model) {}
  void run(const ComputeCall& call) override;

  std::vector<double> losses;          // one a backward of the last unit
  std::uint32_t fail_at_unit = kNone;  // throw in this unit's backward

 private:
  const ModelShape& model_;
};

struct ToyResult {
  std::vector<double> losses;
  std::vector<double> norms;
  std::string hash;
  std::uint64_t committed = 0;         // after the last step
  std::uint64_t committed_at_end = 0;  // after a drain and a commit
  friend bool operator==(const ToyResult&, const ToyResult&) = default;
};

struct ToyOptions {
  RuntimeOptions runtime = {};  // of every rank; a seed that is not 0 is another one on each
  std::uint32_t fail_at_unit = kNone;
  std::shared_ptr<IoHooks> hooks = nullptr;
  std::uint32_t adversarial_rank = kNone;  // whose adversarial_first counts; kNone: every rank's
};

// Three steps of `plan`, the last with the commit of the second, in a new store under `folder`; then a drain,
// a commit, an evaluation and a visit of all states.
// One plan a rank: each rank is a thread with a device, arenas and an executor of its own; they share queue,
// store and scratch. Fails where ranks see different verdicts, losses of the evaluation or replicas.
ToyResult run_toy(const ModelShape& model, std::span<const Plan> plans, const std::string& folder,
                  const ToyOptions& options = {});
inline ToyResult run_toy(const ModelShape& model, const Plan& plan, const std::string& folder,
                         const ToyOptions& options = {}) {
  return run_toy(model, std::span<const Plan>(&plan, 1), folder, options);
}

// Half of every class on disk, the least pools: most operations and the tightest reuse.
PlanRequest tight_request(std::uint32_t contributions, UpdateTime updates);

}  // namespace terrace
