// An engine on a model of bare tensors whose gradients are a formula, and the same run in double precision.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "src/engine/engine.h"
#include "terrace/config.h"
#include "tests/support/temp_dir.h"

namespace terrace::engine_test {

struct KnownModel {
  struct Tensor {
    std::string name;
    std::uint64_t numel = 0;
    bool decay = true;
  };
  std::vector<std::vector<Tensor>> units;
  // Does the contribution of the step (from 1) reach the tensor? Empty: all do.
  std::function<bool(const std::string& tensor, std::uint64_t step, std::uint32_t contribution)> reaches;
  // Empty: gradient_value().
  std::function<float(const std::string& tensor, std::uint64_t element, std::uint64_t step,
                      std::uint32_t contribution)>
      gradient = {};
  std::string infinite = {};  // a tensor whose gradient is not finite
  bool drops_states = true;   // of frozen blocks; false: they are cut like the others
};

float initial_value(const std::string& tensor, std::uint64_t element);
float gradient_value(const std::string& tensor, std::uint64_t element, std::uint64_t step,
                     std::uint32_t contribution);
double learning_rate(std::uint64_t step);

// Values of one tensor after a run.
template <typename T>
struct TensorState {
  std::vector<T> master, exp_avg, exp_avg_sq;
  std::uint64_t steps = 0;
  friend bool operator==(const TensorState&, const TensorState&) = default;
};

struct KnownResult {
  std::map<std::string, TensorState<float>> tensors;
  std::vector<double> norms;
  std::string hash;
  std::string ledger;
  std::uint64_t state_bytes = 0;  // resident states on device and host, of all ranks
  std::uint64_t sum_numel = 0;    // resident sums, likewise
  friend bool operator==(const KnownResult& a, const KnownResult& b) {
    return a.tensors == b.tensors && a.norms == b.norms && a.hash == b.hash;
  }
};
std::ostream& operator<<(std::ostream& out, const KnownResult& result);

// Everything in fp32, in memory.
Config known_config();

struct Mesh {
  std::uint32_t ranks;
  const char* stage;
  std::uint32_t replicas = 0;
};
Config on(Config config, const Mesh& mesh);

// Stores in folders of their own, removed in the destructor.
class Stores {
 public:
  // A new store with an nvme tier for `config`; `on_nvme`: all states, parameters and gradients lie there.
  Config on_disk(Config config, bool on_nvme = true);

 private:
  TempDir folder_;
  int made_ = 0;
};

// Steps `first` to `last` (from 1), then a drain, a commit where there is a store, an evaluation (what it
// reads must be the masters) and a visit. Fails the test where a tensor has elements of two step counts.
KnownResult run_known(const Config& config, const KnownModel& model, std::uint64_t first, std::uint64_t last,
                      bool resume = false);

// The same from the papers: Adam with decoupled weight decay, each tensor with hyperparameters that `hyper`
// gives it; a step that no contribution reaches leaves it. `counts`: its gradient is part of the norm.
struct Hyper {
  double lr_ratio = 1;
  double weight_decay = 0;
  bool frozen = false;
};
std::map<std::string, TensorState<double>> reference_run(
    const Config& config, const KnownModel& model, std::uint64_t steps,
    const std::function<Hyper(const KnownModel::Tensor&)>& hyper, std::vector<double>* norms = nullptr);

// Compares within what fp32 loses in a few steps.
void expect_near(const KnownResult& result, const std::map<std::string, TensorState<double>>& exact,
                 const std::string& what);

}  // namespace terrace::engine_test
