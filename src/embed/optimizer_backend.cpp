#include "src/embed/optimizer_backend.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/base/aligned_memory.h"
#include "src/base/fail.h"
#include "src/base/parallel_for.h"
#include "src/base/process_memory.h"
#include "src/config/keys.h"
#include "src/embed/element_cast.h"
#include "src/embed/first_commit.h"

namespace terrace {
namespace {

// Kept with a commit: the step in words, then the program's own bytes.
struct EmbedState {
  std::uint64_t steps = 0;
  std::string program;
};

constexpr std::string_view kStateName = "optimizer step ";
constexpr std::size_t kMostProgramBytes = std::size_t{1} << 20;

std::string to_text(const EmbedState& state) {
  return fmt::format("{}{}\n{}", kStateName, state.steps, state.program);
}

EmbedState embed_state(const std::string& text, const std::string& store) {
  const std::size_t line = text.find('\n');
  if (!text.starts_with(kStateName) || line == std::string::npos) {
    fail(ErrorCode::invalid_argument, "the store {} was not written by an embedded optimizer", store);
  }
  return {std::stoull(text.substr(kStateName.size(), line - kStateName.size())), text.substr(line + 1)};
}

DType gradient_dtype(const Config& config, const TensorTable& tensors) {
  if (config.precision.grad == "auto") return tensors.gradient_dtype();
  if (config.precision.grad == "bf16") return DType::bf16;
  if (config.precision.grad == "fp32") return DType::f32;
  fail(ErrorCode::invalid_argument, "precision.grad is '{}'; wanted auto, bf16 or fp32",
       config.precision.grad);
}

bool resumes(const Config& config, StoreUse use) {
  if (use != StoreUse::create_or_resume) return use == StoreUse::resume;
  return !config.store.path.empty() && ExtentStore::exists(config.store.path);
}

// There are no activations; they take no room wherever they are said to lie.
Config without_activations(Config config) {
  config.placement.activations = {false, 1, 0, 0};
  check_config(config, "the configuration");
  return config;
}

// What the optimizer holds beside its arenas: stacks and heaps of the lanes' and compute threads, oneTBB, a
// few lists a tensor.
HostOverhead overhead_of(const Config& config, const TensorTable& tensors, const ModelShape& shape,
                         std::uint64_t chunk_numel) {
  constexpr std::uint64_t kBaseBytes = 6 * kMiB, kThreadBytes = kMiB / 2, kTensorBytes = kKiB;
  const std::uint64_t stack_bytes = huge_page_support().always ? kHugePageBytes : 0;
  HostOverhead overhead = engine_overhead(config, shape, chunk_numel);
  overhead.library_bytes = kBaseBytes + (kLanes + 1) * stack_bytes +
                           compute_threads(config) * (kThreadBytes + stack_bytes) +
                           tensors.size() * kTensorBytes;
  return overhead;
}

// `config` and `tensors` outlive it.
EngineModel engine_model(const Config& config, const TensorTable& tensors) {
  EngineModel model;
  model.shape = tensors.shape(gradient_dtype(config, tensors));
  model.identity = tensors.identity();
  model.numerics = nlohmann::ordered_json{{"device", "host"},
                                          {"precision.grad", dtype_name(model.shape.grad_dtype)},
                                          {"train.micro_batches", config.train.micro_batches}}
                       .dump();
  model.says = "the program registers";
  model.resume_by = "StoreUse::resume";
  // From the program's memory.
  model.initial = [&tensors](std::uint32_t unit, std::uint32_t index, std::uint64_t begin, std::uint64_t end,
                             float* out) {
    const TensorPart& part = tensors.units()[unit][index];
    const OptimizerTensor& tensor = tensors[part.tensor];
    const DType dtype = dtype_of(tensor.parameter_type);
    cast_parameters(
        static_cast<const std::byte*>(tensor.parameters) + (part.begin + begin) * dtype_bytes(dtype), dtype,
        reinterpret_cast<std::byte*>(out), DType::f32, end - begin);
  };
  model.overhead = [&config, &tensors, shape = model.shape](std::uint64_t chunk_numel) {
    return overhead_of(config, tensors, shape, chunk_numel);
  };
  return model;
}

}  // namespace

OptimizerBackend::OptimizerBackend(const Config& given, std::vector<OptimizerTensor> tensors,
                                   const BackendOptions& options)
    : clip_norm_(given.optimizer.clip_norm), tensors_(std::move(tensors), options.bounds) {
  const Config config = without_activations(given);
  if (!(clip_norm_ >= 0) || !std::isfinite(clip_norm_)) {
    fail(ErrorCode::invalid_argument, "optimizer.clip_norm is {}; wanted a finite number, at least 0",
         clip_norm_);
  }
  if (config.ranks.count != 1) {
    fail(ErrorCode::unsupported, "ranks.count = {}: an embedded optimizer runs as one rank",
         config.ranks.count);
  }
  set_parallel_threads(static_cast<int>(config.compute.threads));
  engine_ = std::make_unique<Engine>(
      config, engine_model(config, tensors_),
      EngineOptions{resumes(config, options.use), options.adversarial_seed, options.io_hooks});
  const std::optional<std::string> committed = engine_->run_state();
  if (committed) {
    EmbedState state = embed_state(*committed, config.store.path);
    steps_ = committed_ = state.steps;
    iterations_ = *engine_->store()->committed_step();
    resumed_state_ = std::move(state.program);
  }
  run_state_ = to_text({steps_, resumed_state_});
  if (!committed && engine_->store() != nullptr) {
    commit_initial_states(*engine_, config.commit.every_steps != 0, run_state_);
  }
  executor_ = std::make_unique<ExternalExecutor>(tensors_, engine_->model(), config.train.micro_batches,
                                                 plan().updates, committed.has_value());
  Executor* const executor = executor_.get();
  engine_->start({&executor, 1});
  commits_ = std::make_unique<CommitPolicy>(config, plan());
}

OptimizerBackend::~OptimizerBackend() {
  if (executor_) executor_->cancel();
}

void OptimizerBackend::require_usable(const Lock&) const {
  if (failure_) std::rethrow_exception(failure_);
}

void OptimizerBackend::require_between_steps(const Lock&, const char* call) const {
  if (!marked_) return;
  fail(ErrorCode::invalid_argument,
       "{}: step {} has been given gradients, or was announced; end it with step() first", call, steps_ + 1);
}

void OptimizerBackend::begin_program(const Lock&) {
  if (begun_) return;
  if (ending_) fail(ErrorCode::invalid_argument, "called while save() or state_hash() runs");
  commits_in_it_ = commits_->due(steps_) && committed_ != steps_;
  inputs_ = {};
  inputs_.step = iterations_ + 1;
  inputs_.clip_norm = clip_norm_;
  if (commits_in_it_) inputs_.commit = {iterations_, run_state_};
  executor_->begin();
  thread_.start(
      [this, kind = commits_in_it_ ? ProgramKind::train_commit : ProgramKind::train] { run_program(kind); });
  begun_ = true;
}

// The thread's.
void OptimizerBackend::run_program(ProgramKind kind) {
  bool applied = false;
  try {
    outcome_ = engine_->run(kind, inputs_);
    applied = outcome_.verdict.finite;
  } catch (...) {
    const Lock lock(mutex_);
    failure_ = std::current_exception();
  }
  executor_->end(applied);
}

void OptimizerBackend::ended_program(const Lock& lock) {
  begun_ = marked_ = announced_ = ending_ = false;
  require_usable(lock);
  ++iterations_;
  if (commits_in_it_) committed_ = steps_;
}

void OptimizerBackend::wait_for_parameters(std::size_t tensor) {
  tensors_.at(tensor);
  {
    const Lock lock(mutex_);
    require_usable(lock);
    begin_program(lock);
  }
  executor_->wait_for_unit(tensors_.last_unit(tensor));
  const Lock lock(mutex_);
  require_usable(lock);
}

void OptimizerBackend::wait_for_parameters() {
  wait_for_parameters(tensors_.size() - 1);
}

void OptimizerBackend::gradient_ready(std::size_t tensor, const void* gradient, ElementType type) {
  const OptimizerTensor& registered = tensors_.at(tensor);
  if (gradient == nullptr) {
    fail(ErrorCode::invalid_argument, "gradient_ready: the gradient of '{}' is a null pointer",
         registered.name);
  }
  if (type != registered.gradient_type) {
    const auto name = [](ElementType t) {
      return t > ElementType::fp16 ? std::string_view("no known type") : dtype_name(dtype_of(t));
    };
    fail(ErrorCode::invalid_argument, "gradient_ready: the gradient of '{}' is {}; {} was registered",
         registered.name, name(type), name(registered.gradient_type));
  }
  const Lock lock(mutex_);
  require_usable(lock);
  if (ending_) {
    fail(ErrorCode::invalid_argument,
         "the gradient of '{}' is signalled while its contribution is being ended", registered.name);
  }
  begin_program(lock);
  executor_->gradient_ready(tensor, gradient);
  marked_ = true;
}

void OptimizerBackend::end_contribution() {
  const std::lock_guard control(control_);
  {
    const Lock lock(mutex_);
    require_usable(lock);
    begin_program(lock);
    ending_ = true;
  }
  const auto ended = [&] {
    const Lock lock(mutex_);
    ending_ = false;
  };
  try {
    executor_->end_contribution();
  } catch (...) {
    ended();
    throw;
  }
  ended();
  const Lock lock(mutex_);
  marked_ = true;
  require_usable(lock);
}

void OptimizerBackend::check_request(const OptimizerStep& step) const {
  if (step.groups.size() < tensors_.groups()) {
    fail(ErrorCode::invalid_argument, "step: hyperparameters of {} groups; the tensors name {}",
         step.groups.size(), tensors_.groups());
  }
  if (!(step.loss_scale > 0) || !std::isfinite(step.loss_scale)) {
    fail(ErrorCode::invalid_argument, "step: loss_scale is {}; wanted a finite number > 0", step.loss_scale);
  }
  if (to_text({steps_ + 1, step.program_state}).size() > kMostProgramBytes) {
    fail(ErrorCode::invalid_argument, "step: program_state has {} bytes; wanted at most {} less 64",
         step.program_state.size(), kMostProgramBytes);
  }
  for (std::size_t g = 0; g < step.groups.size(); ++g) {
    try {
      const AdamWGroup& group = step.groups[g];
      AdamWScalars::make({group.lr, group.beta1, group.beta2, group.eps, group.weight_decay}, 1);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("step: group {}: {}", g, error.what()));
    }
  }
}

void OptimizerBackend::announce(const Lock& lock, const OptimizerStep& step) {
  if (announced_) fail(ErrorCode::invalid_argument, "step {} has been announced; step() ends it", steps_ + 1);
  check_request(step);
  begin_program(lock);
  for (const AdamWGroup& group : step.groups)
    inputs_.groups.push_back({group.lr, group.beta1, group.beta2, group.eps, group.weight_decay});
  inputs_.loss_scale = step.loss_scale;
  run_state_ = to_text({steps_ + 1, step.program_state});
  announced_ = marked_ = true;
  executor_->announce();
}

void OptimizerBackend::announce_step(const OptimizerStep& step) {
  const std::lock_guard control(control_);
  const Lock lock(mutex_);
  require_usable(lock);
  announce(lock, step);
}

OptimizerVerdict OptimizerBackend::step(const OptimizerStep& step) {
  const std::lock_guard control(control_);
  Lock lock(mutex_);
  require_usable(lock);
  announce(lock, step);
  return end_step(lock);
}

OptimizerVerdict OptimizerBackend::step() {
  const std::lock_guard control(control_);
  Lock lock(mutex_);
  require_usable(lock);
  if (!announced_) {
    fail(ErrorCode::invalid_argument, "step {} has not been announced: step() wants its hyperparameters",
         steps_ + 1);
  }
  return end_step(lock);
}

OptimizerVerdict OptimizerBackend::end_step(Lock& lock) {
  ending_ = true;
  executor_->end_step();
  lock.unlock();
  thread_.wait();
  lock.lock();
  ended_program(lock);
  ++steps_;
  commits_->measure(outcome_.wall_us);
  return {steps_, outcome_.verdict.norm, !outcome_.verdict.finite};
}

// Ends a program that was begun for a step that has not been given anything, and does what is pending.
void OptimizerBackend::settle(Lock& lock) {
  if (begun_) {
    executor_->skip();
    lock.unlock();
    thread_.wait();
    lock.lock();
    ended_program(lock);
  }
  run_job(lock, [this] { engine_->drain(); });
}

void OptimizerBackend::run_job(Lock& lock, std::function<void()> job) {
  ending_ = true;
  thread_.start([this, job = std::move(job)] {
    try {
      job();
    } catch (...) {
      const Lock inside(mutex_);
      failure_ = std::current_exception();
    }
  });
  lock.unlock();
  thread_.wait();
  lock.lock();
  ending_ = false;
  require_usable(lock);
}

void OptimizerBackend::save() {
  const std::lock_guard control(control_);
  Lock lock(mutex_);
  require_usable(lock);
  if (!commits_->enabled()) {
    fail(ErrorCode::invalid_argument, "save: {}",
         engine_->store() == nullptr ? "store.path is not set"
                                     : "commit.every_steps is 0: the store keeps nothing");
  }
  require_between_steps(lock, "save");
  settle(lock);
  if (committed_ == steps_) return;
  inputs_ = {};
  inputs_.commit = {iterations_, run_state_};
  run_job(lock, [this] { engine_->run(ProgramKind::commit, inputs_); });
  committed_ = steps_;
}

std::string OptimizerBackend::state_hash() {
  const std::lock_guard control(control_);
  Lock lock(mutex_);
  require_usable(lock);
  require_between_steps(lock, "state_hash");
  settle(lock);
  std::string hash;
  run_job(lock, [&] { hash = engine_->state_hash(); });
  return hash;
}

}  // namespace terrace
