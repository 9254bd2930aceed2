#include "tests/engine/known_gradients.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <utility>

#include "src/base/hash.h"
#include "src/base/random.h"
#include "src/engine/host_overhead.h"
#include "src/train/parameter_groups.h"

namespace terrace::engine_test {
namespace {

ModelShape shape_of(const Config& config, const KnownModel& model) {
  ModelShape shape;
  shape.param_dtype = shape.grad_dtype = DType::f32;
  for (const auto& tensors : model.units) {
    UnitShape unit;
    unit.name = "u" + std::to_string(shape.units.size());
    for (const KnownModel::Tensor& tensor : tensors)
      unit.tensors.push_back({tensor.name, tensor.numel, tensor.decay ? 0u : 1u});
    shape.units.push_back(std::move(unit));
  }
  assign_parameter_groups(config, shape);
  for (UnitShape& unit : shape.units) {
    for (TensorShape& tensor : unit.tensors) tensor.master_only &= model.drops_states;
  }
  return shape;
}

// Of one rank.
class KnownExecutor : public Executor {
 public:
  KnownExecutor(const KnownModel& model, const ModelShape& shape) : model_(model), shape_(shape) {
    for (const UnitShape& unit : shape.units) {
      touched_.emplace_back(unit.tensors.size(), false);
      touched_in_.push_back(0);
      parameters.emplace_back(unit.padded_numel());
    }
  }

  void begin_step(std::uint64_t step) { step_ = step; }

  void run(const ComputeCall& call) override {
    const UnitShape& unit = shape_.units[call.unit];
    if (const float* values = call.at<float>(Role::params))
      parameters[call.unit].assign(values, values + unit.padded_numel());
    if (call.kind != OpKind::backward || unit.padded_numel() == 0) return;
    std::vector<bool>& touched = touched_[call.unit];
    if (std::exchange(touched_in_[call.unit], step_) != step_) touched.assign(touched.size(), false);
    float* out = call.at<float>(Role::grads);
    for (std::size_t t = 0; t < unit.tensors.size(); ++t) {
      const TensorShape& tensor = unit.tensors[t];
      const bool reached = !model_.reaches || model_.reaches(tensor.name, step_, call.contribution);
      if (reached) touched[t] = true;
      for (std::uint64_t i = 0; i < tensor.numel; ++i)
        *out++ = tensor.name == model_.infinite ? std::numeric_limits<float>::infinity()
                 : !reached                     ? -0.0f
                 : model_.gradient              ? model_.gradient(tensor.name, i, step_, call.contribution)
                                                : gradient_value(tensor.name, i, step_, call.contribution);
    }
    std::fill(out, call.at<float>(Role::grads) + unit.padded_numel(), 0.0f);
  }

  bool touched(std::uint32_t unit, std::uint32_t tensor) const override { return touched_[unit][tensor]; }

  bool may_leave_untouched() const override { return static_cast<bool>(model_.reaches); }

  std::vector<std::vector<float>> parameters;  // by unit: as they were seen last

 private:
  const KnownModel& model_;
  const ModelShape& shape_;
  std::uint64_t step_ = 0;
  std::vector<std::vector<bool>> touched_;  // by unit and tensor: in the unit's last step on this rank
  std::vector<std::uint64_t> touched_in_;   // by unit: that step
};

void collect(const ModelShape& shape, const Plan& plan, std::uint32_t rank, const ChunkState& state,
             KnownResult& result) {
  if (plan.ranks.owner(state.chunk) != rank) return;
  const Chunk& chunk = plan.chunks[state.chunk];
  for (std::size_t s = 0; s < chunk.segments.size(); ++s) {
    const Segment& segment = chunk.segments[s];
    const TensorShape& tensor = shape.units[chunk.unit].tensors[segment.tensor];
    TensorState<float>& target = result.tensors[tensor.name];
    EXPECT_TRUE(target.master.empty() || target.steps == state.segment_steps[s]) << tensor.name;
    target.steps = state.segment_steps[s];
    std::size_t stream = 0;
    for (auto* values : {&target.master, &target.exp_avg, &target.exp_avg_sq}) {
      values->resize(tensor.numel, std::numeric_limits<float>::quiet_NaN());
      const float* from = state.streams[stream++];
      for (std::uint64_t i = 0; i < segment.numel(); ++i)
        (*values)[segment.begin + i] = from == nullptr ? 0.0f : from[segment.offset + i];
    }
  }
}

void expect_parameters(const ModelShape& shape, const KnownExecutor& executor, const KnownResult& result) {
  for (std::size_t u = 0; u < shape.units.size(); ++u) {
    std::uint64_t at = 0;
    for (const TensorShape& tensor : shape.units[u].tensors) {
      if (tensor.numel == 0) continue;
      const auto& master = result.tensors.at(tensor.name).master;
      ASSERT_EQ(master.size(), tensor.numel) << tensor.name;
      EXPECT_EQ(std::memcmp(master.data(), &executor.parameters[u][at], tensor.numel * sizeof(float)), 0)
          << "what compute reads of " << tensor.name << " is not its master copy";
      at += tensor.numel;
    }
  }
}

}  // namespace

float initial_value(const std::string& tensor, std::uint64_t element) {
  return static_cast<float>(random_normal(1, hash64(tensor), element, 0));
}

float gradient_value(const std::string& tensor, std::uint64_t element, std::uint64_t step,
                     std::uint32_t contribution) {
  return static_cast<float>(0.1 * random_normal(2 + contribution, hash64(tensor), element, step));
}

double learning_rate(std::uint64_t step) {
  return 0.01 / static_cast<double>(step);
}

std::ostream& operator<<(std::ostream& out, const KnownResult& result) {
  out << result.hash;
  for (const double norm : result.norms) out << " " << norm;
  return out;
}

Config known_config() {
  Config config;
  config.optimizer.weight_decay = 0.25;
  config.optimizer.clip_norm = 1;
  config.precision.compute = "fp32";
  config.tiers.device_bytes = 64u << 20;
  config.tiers.host_bytes = 1u << 30;
  config.placement.chunk_numel = 4096;
  config.train.micro_batches = 3;
  config.compute.threads = 2;
  config.ranks.time_limit_s = 20;
  return config;
}

Config on(Config config, const Mesh& mesh) {
  config.ranks.count = mesh.ranks;
  config.ranks.stage = mesh.stage;
  config.ranks.replicas = mesh.replicas;
  return config;
}

Config Stores::on_disk(Config config, bool on_nvme) {
  const std::string folder = folder_.file(std::to_string(made_++));
  std::filesystem::create_directories(folder + "/nvme");
  config.store.path = folder + "/store";
  config.tiers.nvme = {{folder + "/nvme", 64u << 20}};
  config.commit.every_steps = 1;
  if (on_nvme) {
    config.placement.parameters = config.placement.gradients =
        config.placement.optimizer_state = {false, 0, 0, 1};
  }
  return config;
}

KnownResult run_known(const Config& config, const KnownModel& model, std::uint64_t first, std::uint64_t last,
                      bool resume) {
  EngineModel given;
  given.shape = shape_of(config, model);
  given.identity = given.numerics = "{}";
  given.says = "the test says";
  given.resume_by = "resume";
  given.initial = [shape = given.shape](std::uint32_t unit, std::uint32_t tensor, std::uint64_t begin,
                                        std::uint64_t end, float* out) {
    const std::string& name = shape.units[unit].tensors[tensor].name;
    for (std::uint64_t i = begin; i < end; ++i) *out++ = initial_value(name, i);
  };
  given.overhead = [&config, shape = given.shape](std::uint64_t chunk_numel) {
    return engine_overhead(config, shape, chunk_numel);
  };
  std::vector<std::unique_ptr<KnownExecutor>> executors;
  EngineOptions options;
  options.resume = resume;
  Engine engine(config, std::move(given), options);
  const ModelShape& shape = engine.model();
  std::vector<Executor*> all;
  for (std::uint32_t rank = 0; rank < engine.ranks(); ++rank) {
    executors.push_back(std::make_unique<KnownExecutor>(model, shape));
    all.push_back(executors.back().get());
  }
  engine.start(all);
  KnownResult result;
  const bool commits = engine.store() != nullptr && config.commit.every_steps != 0;
  StepInputs inputs;
  for (std::uint64_t step = first; step <= last; ++step) {
    for (const auto& executor : executors) executor->begin_step(step);
    inputs = {};
    inputs.step = step;
    inputs.groups = groups_at(config, learning_rate(step));
    inputs.clip_norm = config.optimizer.clip_norm;
    const bool commit = commits && step > first && step % 2 == 0;
    if (commit) inputs.commit = {step - 1, "{}"};
    result.norms.push_back(
        engine.run(commit ? ProgramKind::train_commit : ProgramKind::train, inputs).verdict.norm);
  }
  engine.drain();
  if (commits) {
    inputs = {};
    inputs.commit = {last, "{}"};
    engine.run(ProgramKind::commit, inputs);
  }
  engine.run(ProgramKind::eval, {});
  engine.visit([&](std::uint32_t rank, const ChunkState& state) {
    collect(shape, engine.plan(rank), rank, state, result);
  });
  for (const auto& executor : executors) expect_parameters(shape, *executor, result);
  result.hash = engine.state_hash();
  result.ledger = to_text(engine.plan().ledger);
  for (std::uint32_t rank = 0; rank < engine.ranks(); ++rank) {
    for (const Slot& slot : engine.plan(rank).residents.slots) {
      if (slot.item == Item::state_chunk && slot.tier != Tier::nvme) result.state_bytes += slot.bytes;
      if (slot.item == Item::grad_sum) result.sum_numel += slot.bytes / sizeof(float);
    }
  }
  return result;
}

std::map<std::string, TensorState<double>> reference_run(
    const Config& config, const KnownModel& model, std::uint64_t steps,
    const std::function<Hyper(const KnownModel::Tensor&)>& hyper, std::vector<double>* norms) {
  std::map<std::string, TensorState<double>> states;
  const auto visit = [&](const auto& body) {
    for (const auto& unit : model.units) {
      for (const KnownModel::Tensor& tensor : unit) body(tensor, hyper(tensor), states[tensor.name]);
    }
  };
  visit([](const KnownModel::Tensor& tensor, const Hyper&, TensorState<double>& state) {
    for (std::uint64_t i = 0; i < tensor.numel; ++i) state.master.push_back(initial_value(tensor.name, i));
    state.exp_avg.resize(tensor.numel);
    state.exp_avg_sq.resize(tensor.numel);
  });
  const Config::Optimizer& o = config.optimizer;
  for (std::uint64_t step = 1; step <= steps; ++step) {
    const auto reaches = [&](const std::string& name, std::uint32_t k) {
      return !model.reaches || model.reaches(name, step, k);
    };
    const auto gradient = [&](const std::string& name, std::uint64_t i) {
      double sum = 0;
      for (std::uint32_t k = 0; k < config.train.micro_batches; ++k)
        if (reaches(name, k)) sum += gradient_value(name, i, step, k);
      return sum;
    };
    double squares = 0;
    visit([&](const KnownModel::Tensor& tensor, const Hyper& h, TensorState<double>&) {
      for (std::uint64_t i = 0; i < tensor.numel && !h.frozen; ++i)
        squares += std::pow(gradient(tensor.name, i), 2);
    });
    const double norm = std::sqrt(squares);
    if (norms != nullptr) norms->push_back(norm);
    const double scale = o.clip_norm > 0 ? std::min(1.0, o.clip_norm / (norm + 1e-6)) : 1.0;
    visit([&](const KnownModel::Tensor& tensor, const Hyper& h, TensorState<double>& state) {
      bool reached = false;
      for (std::uint32_t k = 0; k < config.train.micro_batches; ++k) reached |= reaches(tensor.name, k);
      if (!reached || h.frozen) return;
      const double lr = learning_rate(step) * h.lr_ratio, count = static_cast<double>(++state.steps);
      for (std::uint64_t i = 0; i < tensor.numel; ++i) {
        const double g = gradient(tensor.name, i) * scale;
        double &p = state.master[i], &m = state.exp_avg[i], &v = state.exp_avg_sq[i];
        p *= 1 - lr * h.weight_decay;
        m = o.beta1 * m + (1 - o.beta1) * g;
        v = o.beta2 * v + (1 - o.beta2) * g * g;
        p -=
            lr * m / (1 - std::pow(o.beta1, count)) / (std::sqrt(v / (1 - std::pow(o.beta2, count))) + o.eps);
      }
    });
  }
  return states;
}

void expect_near(const KnownResult& result, const std::map<std::string, TensorState<double>>& exact,
                 const std::string& what) {
  for (const auto& [name, wanted] : exact) {
    if (wanted.master.empty()) continue;
    ASSERT_TRUE(result.tensors.contains(name)) << what << ": " << name;
    const TensorState<float>& got = result.tensors.at(name);
    EXPECT_EQ(got.steps, wanted.steps) << what << ": " << name;
    ASSERT_EQ(got.master.size(), wanted.master.size()) << what << ": " << name;
    double worst = 0, worst_m = 0, worst_v = 0;
    for (std::size_t i = 0; i < wanted.master.size(); ++i) {
      worst = std::max(worst, std::abs(got.master[i] - wanted.master[i]) / (1 + std::abs(wanted.master[i])));
      const double root = std::sqrt(wanted.exp_avg_sq[i]);
      worst_m = std::max(worst_m, std::abs(got.exp_avg[i] - wanted.exp_avg[i]) - 2e-6 * root);
      worst_v = std::max(worst_v, std::abs(got.exp_avg_sq[i] - wanted.exp_avg_sq[i]) - 5e-6 * root * root);
    }
    EXPECT_LT(worst, 2e-6) << what << ": master of " << name;
    EXPECT_LE(worst_m, 1e-12) << what << ": exp_avg of " << name;
    EXPECT_LE(worst_v, 1e-15) << what << ": exp_avg_sq of " << name;
  }
}

}  // namespace terrace::engine_test
