#include "src/engine/engine.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "src/base/fail.h"
#include "src/base/log.h"
#include "src/base/parallel_for.h"
#include "src/checkpoint/state_hash.h"
#include "src/collectives/local_communicator.h"
#include "src/engine/plan_request.h"
#include "src/engine/store_identity.h"
#include "src/plan/check_plan.h"
#include "terrace/store.h"

namespace terrace {
namespace {

// A path's size bounds what store and scratch put on it together: the sizes less what one of them holds.
std::vector<VolumePath> less(std::vector<VolumePath> paths, const std::vector<VolumePath>& held) {
  for (VolumePath& path : paths) {
    for (const VolumePath& part : held) {
      std::error_code unknown;
      if (path.size_bytes == 0 || !std::filesystem::equivalent(part.path, path.path, unknown)) continue;
      path.size_bytes = path.size_bytes > part.size_bytes ? path.size_bytes - part.size_bytes : 1;
    }
  }
  return paths;
}

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
  }
  const bool has_store = !config.store.path.empty();
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
  allocate(planned);
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
void Engine::allocate(const Config& config) {
  std::uint64_t host_bytes = 0;
  for (const Rank& rank : ranks_) host_bytes += rank.plan.arena_bytes[1];
  host_ = std::make_shared<AlignedMemory>(allocate_host_region(host_bytes));
  std::uint64_t offset = 0;
  for (Rank& rank : ranks_) {
    rank.device = make_host_device(config.compute.adversarial);
    rank.arenas = std::make_unique<Arenas>(*rank.device, rank.plan.arena_bytes[0], host_, offset);
    offset += rank.plan.arena_bytes[1];
  }
  threads_ = std::make_unique<RankThreads>(local_ranks(), communicator_options(config).time_limit);
  make_groups(config);
}

void Engine::make_groups(const Config& config) {
  if (ranks() == 1) return;
  std::vector<std::unique_ptr<Communicator>> handles;
  if (world_) {
    handles.push_back(std::move(world_));
  } else {
    handles = make_local_world(static_cast<int>(ranks()), communicator_options(config));
  }
  threads_->run([&](std::uint32_t rank) {
    ranks_[rank].groups = make_rank_groups(std::move(handles[rank]), ranks_[rank].plan.ranks);
  });
}

// Where ranks are processes; null where they are threads of one.
Communicator* Engine::processes() const {
  if (world_) return world_.get();
  return !ranks_.empty() && local_ranks() < ranks() ? ranks_[0].groups.world.get() : nullptr;
}

std::uint64_t Engine::sum_of_processes(std::uint64_t value) {
  if (Communicator* world = processes()) {
    const std::uint64_t own = value;
    world->all_reduce({"a count", kNoUnit, 0}, ReduceOp::sum, std::span(&own, 1), std::span(&value, 1));
  }
  return value;
}

std::uint64_t Engine::largest_of_processes(std::uint64_t value) {
  if (Communicator* world = processes()) {
    const std::uint64_t own = value;
    world->all_reduce({"a decision", kNoUnit, 0}, ReduceOp::max, std::span(&own, 1), std::span(&value, 1));
  }
  return value;
}

std::vector<double> Engine::join_processes(std::vector<double> values) {
  if (Communicator* world = processes()) {
    const std::vector<double> own = values;
    world->all_reduce({"losses", kNoUnit, 0}, own, values);
  }
  return values;
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

// What lives in memory has been initialised; what lives on disk is, each time it is read, until it is
// written.
void Engine::drop_initial() {
  std::size_t dropped = 0;
  for (Rank& rank : ranks_) {
    dropped += std::erase_if(rank.initial, [&](const auto& chunk) {
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
  HostOverhead overhead = model_.overhead(config.placement.chunk_numel);
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
    overhead = model_.measured(overhead);
    overhead.library_bytes = largest_of_processes(overhead.library_bytes);  // one plan for all
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

StoreShape Engine::store_shape(const Config& config, std::uint32_t cut_ranks) const {
  StoreShape shape;
  shape.chunk_numel = config.placement.chunk_numel;
  for (const StateStream& stream : adamw_streams()) {
    shape.streams.push_back({stream.name, std::string(dtype_name(stream.dtype))});
  }
  for (const Chunk& chunk : plan().chunks) {
    StoreChunk stored;
    for (const Segment& segment : chunk.segments) {
      const TensorShape& tensor = model_.shape.units[chunk.unit].tensors[segment.tensor];
      stored.segments.push_back({tensor.name, tensor.begin + segment.begin, tensor.begin + segment.end});
    }
    stored.payload_bytes = state_slot_bytes(chunk) - kTrailerBytes;
    shape.chunks.push_back(std::move(stored));
  }
  shape.model = store_identity(model_, cut_ranks);
  return shape;
}

void Engine::open_storage(const Config& config, const EngineOptions& engine_options, bool exists) {
  std::vector<std::uint64_t> scratch_bytes;  // of all ranks' extents, one rank after another
  for (Rank& rank : ranks_) {
    rank.first_scratch_extent = scratch_bytes.size();
    const auto& own = rank.plan.residents.scratch_bytes;
    scratch_bytes.insert(scratch_bytes.end(), own.begin(), own.end());
  }
  if (config.store.path.empty() && scratch_bytes.empty()) return;
  IoQueueOptions options;
  options.depth = config.io.depth;
  options.piece_bytes = config.io.piece_bytes;
  options.hooks = engine_options.io_hooks;
  queue_ = config.io.queue == "uring"     ? make_uring_queue(options)
           : config.io.queue == "threads" ? make_thread_pool_queue(options)
                                          : make_io_queue(options);
  const std::array<std::span<std::byte>, 1> buffers{host_->span()};
  if (!buffers[0].empty()) queue_->register_buffers(buffers);
  std::vector<VolumePath> paths;
  for (const NvmePath& path : config.tiers.nvme) paths.push_back({path.path, path.size_bytes});
  const auto open_scratch = [&](const std::vector<VolumePath>& room) {
    if (scratch_bytes.empty()) return;
    scratch_ = std::make_unique<Scratch>(*queue_, room, scratch_bytes);
  };
  if (exists) {
    open_store(config, true, {});
    return open_scratch(less(paths, store_->held()));
  }
  open_scratch(paths);  // first: it leaves nothing behind when there is no room for the store
  if (config.store.path.empty()) return;
  open_store(config, false, scratch_ != nullptr ? less(paths, scratch_->held()) : paths);
}

// Where ranks are processes, the first one opens or creates the store, and the others join it then.
void Engine::open_store(const Config& config, bool exists, const std::vector<VolumePath>& room) {
  Communicator* const all = processes();
  std::vector<bool> own;
  for (std::uint32_t c = 0; c < plan().chunks.size(); ++c)
    own.push_back(plan().ranks.owner(c) == plan().rank);
  std::uint64_t epoch = 0;
  if (all == nullptr || all->rank() == 0) {
    store_ = exists ? ExtentStore::open(*queue_, config.store.path)
                    : ExtentStore::create(*queue_, {config.store.path, room, config.commit.every_steps != 0},
                                          store_shape(config, config.ranks.count));
    if (all == nullptr) return;
    store_->share(own);
    epoch = store_->epoch();
  }
  all->broadcast({"the store's epoch", kNoUnit, 0}, WireType::u64, 0,
                 std::as_writable_bytes(std::span(&epoch, 1)));
  if (all->rank() != 0) store_ = ExtentStore::join_run(*queue_, config.store.path, epoch, own);
}

void Engine::visit(const std::function<void(std::uint32_t rank, const ChunkState&)>& visit) {
  std::mutex one_at_a_time;
  threads_->run([&](std::uint32_t rank) {
    const std::lock_guard lock(one_at_a_time);
    const std::uint32_t global = ranks_[rank].plan.rank;
    ranks_[rank].runtime->visitor = [&, global](const ChunkState& state) { visit(global, state); };
    ranks_[rank].runtime->run(ProgramKind::visit, {});
  });
}

std::string Engine::state_hash() {
  const RankTable& table = plan().ranks;
  // By rank: the sum over the chunks that it holds, and over those that it owns.
  std::vector<Hash128> held(ranks()), owned(ranks());
  visit([&](std::uint32_t rank, const ChunkState& state) {
    StateHash hash(model_.shape, plan().chunks);
    hash.add(state);
    held[rank] += hash.value();
    if (table.owner(state.chunk) == rank) owned[rank] += hash.value();
  });
  if (Communicator* all = processes()) {
    const auto own = first_rank();
    const std::array<std::uint64_t, 4> mine{held[own].low, held[own].high, owned[own].low, owned[own].high};
    std::vector<std::uint64_t> numbers(4 * ranks());
    all->all_gather({"hashes of states", kNoUnit, 0}, WireType::u64, equal_parts(all->size(), 4),
                    std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(numbers)));
    for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
      held[rank] = {numbers[4 * rank], numbers[4 * rank + 1]};
      owned[rank] = {numbers[4 * rank + 2], numbers[4 * rank + 3]};
    }
  }
  Hash128 sum;
  std::vector<Hash128> of_shard(table.shape().shard_size());
  for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
    sum += owned[rank];
    of_shard[rank % of_shard.size()] += owned[rank];
  }
  for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
    check(held[rank] == of_shard[rank % of_shard.size()],
          "rank {} holds other states than the ranks that own them", rank);
  }
  return to_hex(sum);
}

CommunicatorStats::Traffic Engine::sent() const {
  const RankGroups& groups = ranks_[0].groups;
  CommunicatorStats::Traffic sum;
  for (const auto* group :
       {groups.world.get(), groups.shard.get(), groups.replicate.get(), groups.commit.get()}) {
    if (group == nullptr) continue;
    const CommunicatorStats& stats = group->stats();
    const CommunicatorStats::Traffic own = stats.total();
    sum.calls += own.calls - stats.of(CollectiveKind::barrier).calls - stats.of(CollectiveKind::split).calls;
    sum.sent_bytes += own.sent_bytes;
    sum.received_bytes += own.received_bytes;
  }
  return sum;
}

}  // namespace terrace
