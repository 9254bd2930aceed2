#include "tests/runtime/toy_engine.h"

#include <cmath>
#include <filesystem>

#include "src/checkpoint/state_hash.h"
#include "tests/plan/tiny_models.h"

namespace terrace {
namespace {

double weighted_sum(const float* values, std::size_t count) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += values[i] * static_cast<double>(1 + i % 7);
  return sum;
}

void fill(float* out, std::size_t count, double from) {
  for (std::size_t i = 0; i < count; ++i) {
    const double x = from * 0.37 + static_cast<double>(i) * 0.0113;
    out[i] = static_cast<float>((x - std::floor(x) - 0.5) * 0.2);
  }
}

}  // namespace

void ToyExecutor::run(const ComputeCall& call) {
  const UnitShape& unit = model_.units[call.unit];
  if (call.kind == OpKind::backward && call.unit == fail_at_unit) throw std::runtime_error("the toy broke");
  const auto count = [](std::uint64_t bytes) { return bytes / sizeof(float); };
  const std::uint64_t input = call.unit > 0 ? count(model_.units[call.unit - 1].output_bytes) : 0;
  double sum = 1 + call.unit;
  const auto read = [&](Role role, std::uint64_t numel) {
    if (call.at<float>(role) != nullptr) sum += weighted_sum(call.at<float>(role), numel);
  };
  const auto write = [&](Role role, std::uint64_t numel, double salt) {
    if (call.at<float>(role) != nullptr) fill(call.at<float>(role), numel, sum + salt);
  };
  read(Role::params, unit.padded_numel());
  if (!unit.shared_units.empty())
    read(Role::shared_params, model_.units[unit.shared_units[0]].padded_numel());
  read(Role::input, input);
  if (call.kind != OpKind::backward) {
    // What is saved comes from parameters and input alone, so that a recomputation gives the same.
    write(Role::saved, count(unit.saved_bytes), 1);
    write(Role::output, count(unit.output_bytes), 2);
    if (call.unit + 1 == model_.units.size()) losses.push_back(sum);
    return;
  }
  read(Role::saved, count(unit.saved_bytes));
  read(Role::output_grad, count(unit.output_bytes));
  if (unit.shared_grad_bytes == 0) read(Role::shared_grad, call.unit == 0 ? 9000 : 0);
  if (call.unit + 1 == model_.units.size()) losses.push_back(sum);
  write(Role::input_grad, input, 3);
  write(Role::grads, unit.padded_numel(), 4 + call.contribution);
  if (unit.shared_grad_bytes > 0) write(Role::shared_grad, count(unit.shared_grad_bytes), 5);
}

ToyResult run_toy(const ModelShape& model, const Plan& plan, const std::string& folder,
                  const ToyOptions& options) {
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  auto device = make_host_device(options.runtime.adversarial);
  Arenas arenas(*device, plan.arena_bytes[0], plan.arena_bytes[1]);
  IoQueueOptions queue_options;
  queue_options.hooks = options.hooks;
  auto queue = make_thread_pool_queue(queue_options);
  const std::vector<VolumePath> paths{{folder, 0}};
  Scratch scratch(*queue, paths, plan.residents.scratch_bytes);
  StoreShape shape;
  shape.chunk_numel = plan.chunks[0].numel;
  for (std::size_t c = 0; c < plan.chunks.size(); ++c) {
    const auto part = static_cast<std::uint64_t>(c);
    shape.chunks.push_back({{{"t", part, part + 1}}, state_slot_bytes(plan.chunks[c].numel) - kTrailerBytes});
    shape.chunks.back().segments.resize(plan.chunks[c].segments.size(), shape.chunks.back().segments[0]);
    for (std::size_t s = 0; s < shape.chunks.back().segments.size(); ++s) {
      shape.chunks.back().segments[s].tensor = "t" + std::to_string(s);
    }
  }
  shape.streams = {{"master", "fp32"}, {"exp_avg", "fp32"}, {"exp_avg_sq", "fp32"}};
  auto store = ExtentStore::create(*queue, {folder + "/store", paths, true}, shape);

  ToyExecutor executor(model);
  executor.fail_at_unit = options.fail_at_unit;
  RuntimeParts parts;
  parts.model = &model;
  parts.plan = &plan;
  parts.device = device.get();
  parts.arenas = &arenas;
  parts.executor = &executor;
  parts.queue = queue.get();
  parts.store = store.get();
  parts.scratch = &scratch;
  parts.initial_master = [&](std::uint32_t chunk, float* master) {
    fill(master, plan.chunks[chunk].numel, 100.0 + chunk);
  };
  Runtime runtime(parts, options.runtime);
  runtime.run(ProgramKind::materialize, {});
  ToyResult result;
  CommitInputs last;
  for (std::uint64_t step = 1; step <= 3; ++step) {
    StepInputs inputs;
    inputs.step = step;
    // Other values each step: an update with another step's would show.
    inputs.groups = {{0.01 / static_cast<double>(step), 0.9, 0.99, 1e-8, 0.1},
                     {0.01 * static_cast<double>(step), 0.9, 0.99, 1e-8, 0.0}};
    inputs.clip_norm = plan.updates == UpdateTime::backward ? 0 : 1;
    inputs.commit = last;
    const auto kind = step == 3 ? ProgramKind::train_commit : ProgramKind::train;
    result.norms.push_back(runtime.run(kind, inputs).verdict.norm);
    last = {step, "{}"};
    if (step == 3) result.committed = store->committed_step().value_or(0);
  }
  runtime.drain();
  StepInputs inputs;
  inputs.commit = last;
  runtime.run(ProgramKind::commit, inputs);
  result.committed_at_end = store->committed_step().value_or(0);
  runtime.run(ProgramKind::eval, {});
  result.losses = executor.losses;
  StateHash hash(model, plan.chunks);
  runtime.visitor = [&](const ChunkState& state) { hash.add(state); };
  runtime.run(ProgramKind::visit, {});
  result.hash = to_hex(hash.value());
  return result;
}

PlanRequest tight_request(std::uint32_t contributions, UpdateTime updates) {
  PlanRequest request =
      testing_models::roomy_request(testing_models::tiny_model(2, true, DType::f32), contributions, 8192);
  request.parameters = request.optimizer_state = request.gradients = request.activations =
      testing_models::kHalves;
  request.recompute = Recompute::always;
  request.updates = updates;
  request.slack = 0;
  return request;
}

}  // namespace terrace
