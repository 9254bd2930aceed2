#include "src/engine/engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "src/base/fail.h"
#include "src/base/log.h"
#include "src/base/parallel_for.h"
#include "src/engine/plan_request.h"
#include "src/engine/store_identity.h"
#include "src/plan/check_plan.h"
#include "terrace/store.h"

namespace terrace {
namespace {

// Calls `make` on a thread of its own and copies what it gives. Planning leaves a heap of many times the
// plan's size, with the plan's own small blocks all over it; a thread's heap goes back to the system whole.
template <typename Make, typename Value>
void on_own_heap(const Make& make, Value& copy) {
  std::optional<Value> value;
  std::exception_ptr failure;
  const auto body = [&] {
    try {
      value = make();
    } catch (...) {
      failure = std::current_exception();
    }
  };
  try {
    std::thread(body).join();
  } catch (const std::system_error&) {  // no more threads: here, then
    body();
  }
  if (failure) std::rethrow_exception(failure);
  copy = std::as_const(*value);
  value.reset();
  trim_heap();
}

// Into zeros: a chunk's values of the tensors that lie in it.
void fill_values(const Chunk& chunk, const InitialValues& initial, float* values) {
  constexpr std::uint64_t kPiece =
      16 * kBlockNumel;  // a value depends on its element alone: any pieces will do
  parallel_for(div_up(chunk.numel, kPiece), [&](std::size_t piece) {
    for (const Segment& segment : chunk.segments) {
      const std::uint64_t from = std::max(segment.offset, piece * kPiece);
      const std::uint64_t to = std::min(segment.offset + segment.numel(), (piece + 1) * kPiece);
      if (from >= to) continue;
      const std::uint64_t begin = segment.begin + (from - segment.offset);
      initial(chunk.unit, segment.tensor, begin, begin + (to - from), values + from);
    }
  });
}

}  // namespace

CommunicatorOptions communicator_options(const Config& config) {
  CommunicatorOptions options;
  options.time_limit =
      std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(config.ranks.time_limit_s * 1000)));
  options.link_gbps = config.ranks.link_gbps;
  return options;
}

Engine::Engine(const Config& config, EngineModel model, const EngineOptions& options)
    : model_(std::move(model)),
      runtime_options_{.adversarial = config.compute.adversarial,
                       .adversarial_seed = options.adversarial_seed,
                       .before_operation = options.before_operation} {
  if (options.make_world) {
    world_ = options.make_world(communicator_options(config));
    check(static_cast<std::uint32_t>(world_->size()) == config.ranks.count,
          "{} processes for ranks.count = {}", world_->size(), config.ranks.count);
    require_alike(*world_, options.process_settings);
  }
  const bool has_store = !config.store.path.empty();
  if (world_ && has_store && config.commit.every_steps == 0) {
    fail(ErrorCode::unsupported,
         "commit.every_steps = 0: a store of one extent a chunk ({}) cannot be shared by processes; wanted "
         "auto, a number above 0, or no store.path",
         config.store.path);
  }
  // The first process's answer is everybody's: it may make the store while another still looks.
  const bool asks = !world_ || world_->rank() == 0;
  const bool exists =
      largest_of_processes(asks && has_store && ExtentStore::exists(config.store.path) ? 1 : 0) > 0;
  if (options.resume && !exists) {
    fail(ErrorCode::not_found, "nothing to resume: {}",
         has_store ? "no store at " + config.store.path : "store.path is not set");
  }
  if (!options.resume && exists) {
    fail(ErrorCode::invalid_argument,
         "{} already holds a store: resume it ({}), or choose another store.path", config.store.path,
         model_.resume_by);
  }
  Config planned = config;
  std::uint32_t cut_ranks = config.ranks.count;  // chunks keep the cut that the store was made with
  std::uint64_t held_bytes = 0;                  // by the store: no longer free, but counted in the plan
  if (exists) {
    const StoreListing listing = list_store(config.store.path);
    cut_ranks = compare_identity(listing.model, model_, config.store.path, options.compares_numerics);
    held_bytes = listing.total_bytes;
    planned.placement.chunk_numel = listing.chunk_numel;
    if (planned.placement.chunk_numel != config.placement.chunk_numel) {
      logger()->info("the store's chunks have {} elements; placement.chunk_numel = {} has no effect",
                     listing.chunk_numel, config.placement.chunk_numel);
    }
  }
  make_plans_that_fit(planned, cut_ranks, held_bytes);
  allocate(planned, options);
  memory_.sample();
  open_storage(planned, options, exists);
  memory_.sample();
  model_.overhead = nullptr;  // these may look at `config`
  model_.measured = nullptr;
}

Engine::~Engine() {
  if (!threads_) return;
  try {
    threads_->run([this](std::uint32_t rank) {
      ranks_[rank].runtime.reset();
      ranks_[rank].groups = {};
    });
  } catch (const std::exception& error) {
    logger()->error("closing the ranks: {}", error.what());
  }
}

// One region for all ranks' host slots; a device arena, and groups to meet in, for each.
void Engine::allocate(const Config& config, const EngineOptions& options) {
  std::uint64_t host_bytes = 0;
  for (const Rank& rank : ranks_) host_bytes += rank.plan.arena_bytes[1];
  host_ = std::make_shared<AlignedMemory>(allocate_host_region(host_bytes));
  std::uint64_t offset = 0;
  for (Rank& rank : ranks_) {
    rank.device = make_host_device(config.compute.adversarial);
    rank.arenas = std::make_unique<Arenas>(*rank.device, rank.plan.arena_bytes[0], host_, offset);
    offset += rank.plan.arena_bytes[1];
  }
  threads_ =
      std::make_unique<RankThreads>(local_ranks(), communicator_options(config).time_limit, options.on_stuck);
  make_groups(config);
}

void Engine::start(std::span<Executor* const> executors) {
  check(executors.size() == ranks_.size(), "{} executors for {} local ranks", executors.size(),
        ranks_.size());
  threads_->run([&](std::uint32_t r) {
    Rank& rank = ranks_[r];
    RuntimeParts parts;
    parts.model = &model_.shape;
    parts.plan = &rank.plan;
    parts.device = rank.device.get();
    parts.arenas = rank.arenas.get();
    parts.executor = executors[r];
    parts.queue = queue_.get();
    parts.store = store_.get();
    parts.scratch = scratch_.get();
    parts.first_scratch_extent = rank.first_scratch_extent;
    parts.groups = ranks() > 1 ? &rank.groups : nullptr;
    parts.ranks_are_processes = processes() != nullptr;
    parts.initial_master = [this](std::uint32_t c, float* master) { fill_master(plan().chunks[c], master); };
    if (model_.own_initial && ranks() > 1) {
      receive_initial(rank);
      parts.initial_master = [&rank](std::uint32_t c, float* master) {
        std::ranges::copy(rank.initial.at(c), master);
      };
    }
    RuntimeOptions options = runtime_options_;
    if (options.adversarial_seed != 0)
      options.adversarial_seed += rank.plan.rank;  // each rank late in its own way
    rank.runtime = std::make_unique<Runtime>(parts, options);
  });
  run(ProgramKind::materialize, {});
  memory_.sample();
}

StepOutcome Engine::run(ProgramKind kind, const StepInputs& inputs) {
  StepOutcome outcome;
  threads_->run([&](std::uint32_t rank) {
    StepOutcome own = ranks_[rank].runtime->run(kind, inputs);
    if (rank == 0) outcome = std::move(own);
  });
  drop_initial();
  return outcome;
}

std::optional<StepOutcome> Engine::drain() {
  std::optional<StepOutcome> outcome;
  threads_->run([&](std::uint32_t rank) {
    std::optional<StepOutcome> own = ranks_[rank].runtime->drain();
    if (rank == 0) outcome = std::move(own);
  });
  return outcome;
}

void Engine::fill_master(const Chunk& chunk, float* master) const {
  fill_values(chunk, model_.initial, master);
}

// On the rank's own thread, all ranks at once, before any program has run.
void Engine::receive_initial(Rank& rank) {
  std::vector<std::uint32_t> unwritten;  // the same on every rank: the store is one
  for (std::uint32_t c = 0; c < rank.plan.chunks.size(); ++c) {
    if (store_ == nullptr || !store_->written(c)) unwritten.push_back(c);
  }
  const InitialValues own = model_.own_initial(rank.plan.rank);
  rank.initial = broadcast_initial(
      *rank.groups.world, rank.plan.chunks, unwritten,
      [&](const Chunk& chunk, float* values) { fill_values(chunk, own, values); },
      [&](std::uint32_t c) { return rank.plan.ranks.holds(rank.plan.rank, c); });
}

// What lives in memory, and this rank's copies of others' states, have been initialised; what lives on disk
// is, each time it is read, until it is written.
void Engine::drop_initial() {
  std::size_t dropped = 0;
  for (Rank& rank : ranks_) {
    dropped += std::erase_if(rank.initial, [&](const auto& chunk) {
      if (rank.plan.ranks.owner(chunk.first) != rank.plan.rank) return true;
      return rank.plan.placement.optimizer_state[chunk.first] != Tier::nvme || store_ == nullptr ||
             store_->written(chunk.first);
    });
  }
  if (dropped > 0) trim_heap();
}

std::uint64_t Engine::ledger_bytes() const {
  // The ledger's device is that of the rank that holds most, its host that of all processes.
  const Ledger& ledger = plan().ledger;
  const std::uint64_t processes = ranks() / local_ranks();
  std::uint64_t bytes = ledger.total(Tier::device) - fullest_device_bytes_;
  for (const Rank& rank : ranks_) bytes += rank.plan.arena_bytes[0] + rank.plan.arena_bytes[1];
  return bytes + (ledger.total(Tier::host) - all_host_arenas_bytes_) / processes;
}

std::optional<std::string> Engine::run_state() const {
  if (!store_ || !store_->committed_step()) return std::nullopt;
  return store_->run_state();
}

void Engine::make_plans_that_fit(const Config& config, std::uint32_t cut_ranks, std::uint64_t held_bytes) {
  const std::uint64_t free = config.tiers.nvme.empty()
                                 ? ~std::uint64_t{0} >> 2
                                 // The least that any process sees: one plan for all.
                                 : ~largest_of_processes(~(free_nvme_bytes(config) + held_bytes));
  HostOverhead overhead =
      largest_of_processes(model_.overhead(config.placement.chunk_numel));  // one plan for all
  const auto plan_once = [&] {
    PlanRequest request = plan_request(config, model_.shape, config.placement.chunk_numel, free, overhead);
    request.cut_ranks = cut_ranks;
    std::vector<Plan> plans = make_plans(request);
    if (!plans[0].fits) throw Error(ErrorCode::does_not_fit, refusal(plans[0]));
    require_legal(model_.shape, plans, config.train.micro_batches);
    return plans;
  };
  const auto plan_with_programs = [&] {
    std::vector<Plan> plans = plan_once();
    std::uint64_t bytes = 0;
    for (const Plan& plan : plans) bytes += program_bytes(plan);
    if (bytes > overhead.program_bytes) {
      overhead.program_bytes = bytes + bytes / 8;
      plans = plan_once();
    }
    return plans;
  };
  std::vector<Plan> plans;
  on_own_heap(plan_with_programs, plans);
  memory_.sample();
  if (model_.measured) {
    const std::uint64_t estimated_bytes = overhead.library_bytes;
    overhead = largest_of_processes(model_.measured(overhead));
    if (overhead.library_bytes > estimated_bytes) on_own_heap(plan_with_programs, plans);
    memory_.sample();
  }
  for (const Plan& plan : plans) {
    fullest_device_bytes_ = std::max(fullest_device_bytes_, plan.arena_bytes[0]);
    all_host_arenas_bytes_ += plan.arena_bytes[1];
  }
  for (Plan& plan : plans) {
    if (!world_ || plan.rank == static_cast<std::uint32_t>(world_->rank()))
      ranks_.emplace_back().plan = std::move(plan);
  }
}

}  // namespace terrace
