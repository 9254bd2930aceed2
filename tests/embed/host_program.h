// A program that embeds the optimizer: it owns parameters and gradients, and each gradient depends on the
// parameters in its memory, so that a parameter that comes late or not at all shows in every number after it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "src/embed/optimizer_backend.h"
#include "terrace/optimizer.h"
#include "tests/support/temp_dir.h"

namespace terrace::embed_test {

struct TensorSpec {
  std::uint64_t numel = 0;
  ElementType parameter_type = ElementType::fp32;
  ElementType gradient_type = ElementType::fp32;
  std::uint32_t group = 0;
};

// Sizes around every border: 1, a block less one, a block and one, a prime.
std::vector<TensorSpec> odd_sizes(ElementType parameters = ElementType::fp32,
                                  ElementType gradients = ElementType::fp32);

// Several units of such tensors, some with several, and tensors over several.
inline constexpr UnitBounds kSmallUnits{8192, 3};

struct RunOptions {
  std::uint64_t order_seed = 0;  // of the signals; 0: the last tensor first
  bool two_threads = false;      // half of the tensors each
  bool announce = false;         // the step before its gradients
  bool wait_for_each = true;     // false: for all parameters at once
  std::set<std::pair<std::uint64_t, std::size_t>> untouched =
      {};                                                       // (step, tensor) that no contribution reaches
  std::set<std::pair<std::uint32_t, std::size_t>> missed = {};  // (contribution, tensor), in every step
  double loss_scale = 1;
  std::function<void()> before_call = {};  // before each call of the optimizer
};

class HostProgram {
 public:
  explicit HostProgram(const std::vector<TensorSpec>& specs);

  std::vector<OptimizerTensor> registration();
  // The hyperparameters of step `step`: they differ from step to step and group to group.
  static OptimizerStep hyper(std::uint64_t step, double loss_scale = 1);
  // The gradient of a contribution from the parameters as they are now, in the tensor's gradient type.
  // Elements of missed tensors are absent (empty).
  std::vector<std::byte> gradient(std::uint64_t step, std::uint32_t contribution, std::size_t tensor,
                                  double loss_scale = 1) const;

  // One step of `contributions` contributions; its verdict.
  OptimizerVerdict step(OptimizerBackend& optimizer, std::uint32_t contributions,
                        const RunOptions& options = {});
  // Steps up to `last`; then waits for all parameters.
  void run(OptimizerBackend& optimizer, std::uint64_t last, std::uint32_t contributions,
           const RunOptions& options = {});

  std::size_t size() const { return specs_.size(); }
  const TensorSpec& spec(std::size_t tensor) const { return specs_[tensor]; }
  const std::vector<std::byte>& bytes(std::size_t tensor) const { return parameters_[tensor]; }
  std::vector<std::byte>& bytes(std::size_t tensor) { return parameters_[tensor]; }
  const std::vector<std::vector<std::byte>>& bytes() const { return parameters_; }
  std::vector<float> values(std::size_t tensor) const;

 private:
  std::vector<TensorSpec> specs_;
  std::vector<std::vector<std::byte>> parameters_;
  std::vector<std::vector<std::byte>>
      gradients_;  // they outlive an optimizer that is gone in the middle of a step
};

std::string name_of_tensor(std::size_t tensor);
float value_of(const std::byte* element, ElementType type);

// Roomy budgets, `contributions`, everything left to the planner, no store.
Config memory_config(std::uint32_t contributions, double clip_norm);
// The same with a store and an nvme tier in `folder`; all of it, or a half of each class, on disk.
Config disk_config(const std::string& folder, std::uint32_t contributions, double clip_norm,
                   double share = 1);

// Ends the test program when a part of it hangs.
class Watchdog {
 public:
  explicit Watchdog(std::string what);
  ~Watchdog();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace terrace::embed_test
