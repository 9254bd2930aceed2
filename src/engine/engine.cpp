#include "src/engine/engine.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "src/base/fail.h"
#include "src/base/log.h"
#include "src/base/parallel_for.h"
#include "src/checkpoint/state_hash.h"
#include "src/engine/plan_request.h"
#include "src/plan/check_plan.h"
#include "terrace/store.h"

namespace terrace {
namespace {

using Json = nlohmann::ordered_json;

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

void compare_identity(const std::string& stored, const EngineModel& model, const std::string& path,
                      bool compares_numerics) {
  const auto theirs = Json::parse(stored, nullptr, false);
  if (theirs.is_discarded() || !theirs.contains("identity") || !theirs.contains("numerics")) {
    fail(ErrorCode::corrupt, "the store {} does not say which model it holds", path);
  }
  const auto ours = Json::parse(model.identity);
  const auto refuse = [&](const std::string& key, const Json& other, const Json& own) {
    const auto text = [](const Json& json) { return json.is_null() ? std::string("nothing") : json.dump(); };
    fail(ErrorCode::invalid_argument, "the store {} was written with {} = {}; {} {}", path, key, text(other),
         model.says, text(own));
  };
  for (const auto& [key, value] : ours.items()) {
    const auto other = theirs["identity"].value(key, Json());
    if (other != value) refuse(key, other, value);
  }
  for (const auto& [key, other] : theirs["identity"].items()) {
    if (!ours.contains(key)) refuse(key, other, Json());
  }
  if (!compares_numerics) return;
  const auto numerics = Json::parse(model.numerics);
  for (const auto& [key, value] : numerics.items()) {
    const auto other = theirs["numerics"].value(key, Json());
    if (other != value) {
      logger()->warn("the store {} was written with {} = {}, this run has {}: it will not give the same bits",
                     path, key, other.dump(), value.dump());
    }
  }
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

}  // namespace

Engine::Engine(const Config& config, EngineModel model, const EngineOptions& options)
    : model_(std::move(model)), runtime_options_{config.compute.adversarial, options.adversarial_seed} {
  const bool has_store = !config.store.path.empty();
  const bool exists = has_store && ExtentStore::exists(config.store.path);
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
  std::uint64_t held_bytes = 0;  // by the store: no longer free, but counted in the plan
  if (exists) {
    const StoreListing listing = list_store(config.store.path);
    compare_identity(listing.model, model_, config.store.path, options.compares_numerics);
    held_bytes = listing.total_bytes;
    planned.placement.chunk_numel = listing.chunk_numel;
    if (planned.placement.chunk_numel != config.placement.chunk_numel) {
      logger()->info("the store's chunks have {} elements; placement.chunk_numel = {} has no effect",
                     listing.chunk_numel, config.placement.chunk_numel);
    }
  }
  make_plan_that_fits(planned, held_bytes);
  device_ = make_host_device(config.compute.adversarial);
  arenas_ = std::make_unique<Arenas>(*device_, plan_.arena_bytes[0], plan_.arena_bytes[1]);
  memory_.sample();
  open_storage(planned, options, exists);
  memory_.sample();
  model_.overhead = nullptr;  // these may look at `config`
  model_.measured = nullptr;
}

Engine::~Engine() = default;

void Engine::start(Executor& executor) {
  RuntimeParts parts;
  parts.model = &model_.shape;
  parts.plan = &plan_;
  parts.device = device_.get();
  parts.arenas = arenas_.get();
  parts.executor = &executor;
  parts.queue = queue_.get();
  parts.store = store_.get();
  parts.scratch = scratch_.get();
  parts.initial_master = [this](std::uint32_t c, float* master) { fill_master(plan_.chunks[c], master); };
  runtime_ = std::make_unique<Runtime>(parts, runtime_options_);
  runtime_->run(ProgramKind::materialize, {});
  memory_.sample();
}

void Engine::fill_master(const Chunk& chunk, float* master) const {
  constexpr std::uint64_t kPiece =
      16 * kBlockNumel;  // a value depends on its element alone: any pieces will do
  parallel_for(div_up(chunk.numel, kPiece), [&](std::size_t piece) {
    for (const Segment& segment : chunk.segments) {
      const std::uint64_t from = std::max(segment.offset, piece * kPiece);
      const std::uint64_t to = std::min(segment.offset + segment.numel(), (piece + 1) * kPiece);
      if (from >= to) continue;
      const std::uint64_t begin = segment.begin + (from - segment.offset);
      model_.initial(chunk.unit, segment.tensor, begin, begin + (to - from), master + from);
    }
  });
}

std::uint64_t Engine::ledger_bytes() const {
  return plan_.ledger.total(Tier::device) + plan_.ledger.total(Tier::host);
}

std::optional<std::string> Engine::run_state() const {
  if (!store_ || !store_->committed_step()) return std::nullopt;
  return store_->run_state();
}

void Engine::make_plan_that_fits(const Config& config, std::uint64_t held_bytes) {
  const std::uint64_t free =
      config.tiers.nvme.empty() ? ~std::uint64_t{0} >> 2 : free_nvme_bytes(config) + held_bytes;
  HostOverhead overhead = model_.overhead(config.placement.chunk_numel);
  const auto plan_once = [&] {
    Plan plan = make_plan(plan_request(config, model_.shape, config.placement.chunk_numel, free, overhead));
    if (!plan.fits) throw Error(ErrorCode::does_not_fit, refusal(plan));
    require_legal(model_.shape, plan, config.train.micro_batches);
    return plan;
  };
  const auto plan_with_programs = [&] {
    Plan plan = plan_once();
    if (const std::uint64_t bytes = program_bytes(plan); bytes > overhead.program_bytes) {
      overhead.program_bytes = bytes + bytes / 8;
      plan = plan_once();
    }
    return plan;
  };
  on_own_heap(plan_with_programs, plan_);
  memory_.sample();
  if (!model_.measured) return;
  const std::uint64_t estimated_bytes = overhead.library_bytes;
  overhead = model_.measured(overhead);
  if (overhead.library_bytes > estimated_bytes) on_own_heap(plan_with_programs, plan_);
  memory_.sample();
}

StoreShape Engine::store_shape(const Config& config) const {
  StoreShape shape;
  shape.chunk_numel = config.placement.chunk_numel;
  for (const StateStream& stream : adamw_streams()) {
    shape.streams.push_back({stream.name, std::string(dtype_name(stream.dtype))});
  }
  for (const Chunk& chunk : plan_.chunks) {
    StoreChunk stored;
    for (const Segment& segment : chunk.segments) {
      const TensorShape& tensor = model_.shape.units[chunk.unit].tensors[segment.tensor];
      stored.segments.push_back({tensor.name, tensor.begin + segment.begin, tensor.begin + segment.end});
    }
    stored.payload_bytes = state_slot_bytes(chunk.numel) - kTrailerBytes;
    shape.chunks.push_back(std::move(stored));
  }
  shape.model =
      Json{{"identity", Json::parse(model_.identity)}, {"numerics", Json::parse(model_.numerics)}}.dump();
  return shape;
}

void Engine::open_storage(const Config& config, const EngineOptions& engine_options, bool exists) {
  if (config.store.path.empty() && plan_.residents.scratch_bytes.empty()) return;
  IoQueueOptions options;
  options.depth = config.io.depth;
  options.piece_bytes = config.io.piece_bytes;
  options.hooks = engine_options.io_hooks;
  queue_ = config.io.queue == "uring"     ? make_uring_queue(options)
           : config.io.queue == "threads" ? make_thread_pool_queue(options)
                                          : make_io_queue(options);
  const std::array<std::span<std::byte>, 1> buffers{arenas_->host().span()};
  if (!buffers[0].empty()) queue_->register_buffers(buffers);
  std::vector<VolumePath> paths;
  for (const NvmePath& path : config.tiers.nvme) paths.push_back({path.path, path.size_bytes});
  const auto open_scratch = [&](const std::vector<VolumePath>& room) {
    if (plan_.residents.scratch_bytes.empty()) return;
    scratch_ = std::make_unique<Scratch>(*queue_, room, plan_.residents.scratch_bytes);
  };
  if (exists) {
    store_ = ExtentStore::open(*queue_, config.store.path);
    return open_scratch(less(paths, store_->held()));
  }
  open_scratch(paths);  // first: it leaves nothing behind when there is no room for the store
  if (config.store.path.empty()) return;
  const auto room = scratch_ != nullptr ? less(paths, scratch_->held()) : paths;
  store_ = ExtentStore::create(*queue_, {config.store.path, room, config.commit.every_steps != 0},
                               store_shape(config));
}

std::string Engine::state_hash() {
  StateHash hash(model_.shape, plan_.chunks);
  runtime_->visitor = [&](const ChunkState& state) { hash.add(state); };
  runtime_->run(ProgramKind::visit, {});
  return to_hex(hash.value());
}

}  // namespace terrace
