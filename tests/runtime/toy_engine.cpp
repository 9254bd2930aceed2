#include "tests/runtime/toy_engine.h"

#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "src/base/fail.h"
#include "src/checkpoint/state_hash.h"
#include "src/collectives/local_communicator.h"
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

namespace {

// One rank's part of a run.
struct ToyRank {
  ToyRank(const ModelShape& model, const Plan& own, bool adversarial)
      : plan(own),
        device(make_host_device(adversarial)),
        arenas(*device, own.arena_bytes[0], own.arena_bytes[1]),
        executor(model) {}

  const Plan& plan;
  std::unique_ptr<Device> device;
  Arenas arenas;
  ToyExecutor executor;
  RuntimeParts parts;
  RuntimeOptions options;
  // What it saw.
  std::vector<double> norms;
  std::uint64_t committed = 0, committed_at_end = 0;
  Hash128 owned, held;
};

void run_rank(const ModelShape& model, ToyRank& rank, std::unique_ptr<Communicator> world) {
  const Plan& plan = rank.plan;
  std::optional<RankGroups> groups;
  if (world) groups = make_rank_groups(std::move(world), plan.ranks);
  rank.parts.groups = groups ? &*groups : nullptr;
  const ExtentStore& store = *rank.parts.store;
  Runtime runtime(rank.parts, rank.options);
  runtime.run(ProgramKind::materialize, {});
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
    rank.norms.push_back(runtime.run(kind, inputs).verdict.norm);
    last = {step, "{}"};
    if (step == 3) rank.committed = store.committed_step().value_or(0);
  }
  runtime.drain();
  StepInputs inputs;
  inputs.commit = last;
  runtime.run(ProgramKind::commit, inputs);
  rank.committed_at_end = store.committed_step().value_or(0);
  runtime.run(ProgramKind::eval, {});
  runtime.visitor = [&](const ChunkState& state) {
    StateHash hash(model, plan.chunks);
    hash.add(state);
    rank.held += hash.value();
    if (plan.ranks.ranks() == 1 || plan.ranks.owner(state.chunk) == plan.rank) rank.owned += hash.value();
  };
  runtime.run(ProgramKind::visit, {});
}

// Runs body(rank) on a thread each; rethrows what went wrong first.
void on_threads(std::size_t ranks, const std::function<void(std::size_t)>& body) {
  if (ranks == 1) return body(0);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

// Losses by contribution, norms of every rank alike, states of the owners.
ToyResult joined(std::vector<std::unique_ptr<ToyRank>>& ranks) {
  ToyResult result;
  const Plan& plan = ranks[0]->plan;
  const std::size_t n = ranks.size();
  const std::uint32_t contributions = plan.program(ProgramKind::train).contributions;
  std::vector<std::size_t> next(n);
  for (int step = 0; step < 3; ++step) {
    for (std::uint32_t k = 0; k < contributions; ++k)
      result.losses.push_back(ranks[k % n]->executor.losses.at(next[k % n]++));
  }
  result.losses.push_back(ranks[0]->executor.losses.at(next[0]));  // of the evaluation
  result.norms = ranks[0]->norms;
  result.committed = ranks[0]->committed;
  result.committed_at_end = ranks[0]->committed_at_end;
  Hash128 owned;
  std::vector<Hash128> of_shard(plan.ranks.shape().shard_size());
  for (std::size_t r = 0; r < n; ++r) {
    owned += ranks[r]->owned;
    of_shard[r % of_shard.size()] += ranks[r]->owned;
  }
  for (std::size_t r = 0; r < n; ++r) {
    check(ranks[r]->norms == result.norms, "rank {} saw other norms", r);
    check(ranks[r]->committed == result.committed, "rank {} saw another commit", r);
    check(ranks[r]->executor.losses.at(next[r]) == result.losses.back(), "rank {} has another loss", r);
    check(ranks[r]->held == of_shard[r % of_shard.size()], "rank {} holds other states", r);
  }
  result.hash = to_hex(owned);
  return result;
}

}  // namespace

ToyResult run_toy(const ModelShape& model, std::span<const Plan> plans, const std::string& folder,
                  const ToyOptions& options) {
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const Plan& plan = plans[0];
  IoQueueOptions queue_options;
  queue_options.hooks = options.hooks;
  auto queue = make_thread_pool_queue(queue_options);
  const std::vector<VolumePath> paths{{folder, 0}};
  std::vector<std::uint64_t> scratch_bytes;
  std::vector<std::size_t> first_scratch_extent;
  for (const Plan& own : plans) {
    first_scratch_extent.push_back(scratch_bytes.size());
    const auto& bytes = own.residents.scratch_bytes;
    scratch_bytes.insert(scratch_bytes.end(), bytes.begin(), bytes.end());
  }
  Scratch scratch(*queue, paths, scratch_bytes);
  StoreShape shape;
  shape.chunk_numel = plan.chunks[0].numel;
  for (std::size_t c = 0; c < plan.chunks.size(); ++c) {
    const auto part = static_cast<std::uint64_t>(c);
    shape.chunks.push_back({{{"t", part, part + 1}}, state_slot_bytes(plan.chunks[c]) - kTrailerBytes});
    shape.chunks.back().segments.resize(plan.chunks[c].segments.size(), shape.chunks.back().segments[0]);
    for (std::size_t s = 0; s < shape.chunks.back().segments.size(); ++s) {
      shape.chunks.back().segments[s].tensor = "t" + std::to_string(s);
    }
  }
  shape.streams = {{"master", "fp32"}, {"exp_avg", "fp32"}, {"exp_avg_sq", "fp32"}};
  auto store = ExtentStore::create(*queue, {folder + "/store", paths, true}, shape);

  std::vector<std::unique_ptr<ToyRank>> ranks;
  for (std::size_t r = 0; r < plans.size(); ++r) {
    ranks.push_back(std::make_unique<ToyRank>(model, plans[r], options.runtime.adversarial));
    ToyRank& rank = *ranks.back();
    rank.executor.fail_at_unit = options.fail_at_unit;
    rank.options = options.runtime;
    if (rank.options.adversarial_seed != 0) rank.options.adversarial_seed += r;
    if (options.adversarial_rank != kNone && r != options.adversarial_rank)
      rank.options.adversarial_first = kNone;
    rank.parts.model = &model;
    rank.parts.plan = &plans[r];
    rank.parts.device = rank.device.get();
    rank.parts.arenas = &rank.arenas;
    rank.parts.executor = &rank.executor;
    rank.parts.queue = queue.get();
    rank.parts.store = store.get();
    rank.parts.scratch = &scratch;
    rank.parts.first_scratch_extent = first_scratch_extent[r];
    rank.parts.initial_master = [&](std::uint32_t chunk, float* master) {
      fill(master, plan.chunks[chunk].numel, 100.0 + chunk);
    };
  }
  std::vector<std::unique_ptr<Communicator>> world(plans.size());
  if (plans.size() > 1) {
    world = make_local_world(static_cast<int>(plans.size()), {.time_limit = std::chrono::seconds(2)});
  }
  on_threads(plans.size(), [&](std::size_t r) { run_rank(model, *ranks[r], std::move(world[r])); });
  return joined(ranks);
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
