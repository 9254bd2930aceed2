#include "src/train/session.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "io/data_file.h"
#include "src/base/fail.h"
#include "src/base/log.h"
#include "src/base/parallel_for.h"
#include "src/base/units.h"
#include "src/checkpoint/state_hash.h"
#include "src/model/describe.h"
#include "src/model/product_library.h"
#include "src/plan/check_plan.h"
#include "terrace/store.h"

namespace terrace {
namespace {

// What two runs on one store must agree on.
nlohmann::ordered_json identity_of(const Config& config) {
  const Config::Model& model = config.model;
  return {{"model.layers", model.layers},
          {"model.width", model.width},
          {"model.heads", model.heads},
          {"model.kv_heads", model.kv_heads == 0 ? model.heads : model.kv_heads},
          {"model.mlp_width", model.mlp_width == 0 ? 4 * model.width : model.mlp_width},
          {"model.vocabulary", model.vocabulary},
          {"model.context", model.context},
          {"model.tied_head", model.tied_head},
          {"model.norm", model.norm},
          {"model.position", model.position},
          {"model.mlp", model.mlp},
          {"model.init_std", model.init_std},
          {"train.seed", config.train.seed}};
}

// What the bits depend on beside it (the family): a difference is allowed, and said.
nlohmann::ordered_json numerics_of(const Config& config) {
  return {{"device", "host"},
          {"precision.compute", config.precision.compute},
          {"precision.grad", config.precision.grad},
          {"train.micro_batch", config.train.micro_batch},
          {"train.micro_batches", config.train.micro_batches},
          {"products", product_library()}};
}

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

void compare_identity(const std::string& stored, const Config& config, const std::string& path) {
  const auto theirs = nlohmann::json::parse(stored, nullptr, false);
  if (theirs.is_discarded() || !theirs.contains("identity")) {
    fail(ErrorCode::corrupt, "the store {} does not say which model it holds", path);
  }
  const auto ours = identity_of(config);
  for (const auto& [key, value] : ours.items()) {
    const auto& other = theirs["identity"].value(key, nlohmann::json());
    if (other != value) {
      fail(ErrorCode::invalid_argument, "the store {} was written with {} = {}; the configuration says {}",
           path, key, other.dump(), value.dump());
    }
  }
  const auto numerics = numerics_of(config);
  for (const auto& [key, value] : numerics.items()) {
    const auto& other = theirs["numerics"].value(key, nlohmann::json());
    if (other != value) {
      logger()->warn("the store {} was written with {} = {}, this run has {}: it will not give the same bits",
                     path, key, other.dump(), value.dump());
    }
  }
}

// What is free for paths without a size; those on one file system share it.
std::uint64_t free_nvme_bytes(const Config& config) {
  std::uint64_t sum = 0;
  std::set<dev_t> counted;
  for (const NvmePath& path : config.tiers.nvme) {
    struct stat status {};
    if (::stat(path.path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
      fail(ErrorCode::not_found, "tiers.nvme: {} is not a folder", path.path);
    }
    if (path.size_bytes == 0 && counted.insert(status.st_dev).second) sum += free_bytes(path.path);
  }
  return sum;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

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

Session::Session(const Config& config, const SessionOptions& options) : spec_(model_spec(config)) {
  set_parallel_threads(static_cast<int>(config.compute.threads));
  model_ = describe(spec_, config.train.micro_batch, compute_dtype(config), grad_dtype(config));
  tensors_ = unit_tensors(spec_);
  const bool has_store = !config.store.path.empty();
  const bool exists = has_store && ExtentStore::exists(config.store.path);
  if (options.resume && !exists) {
    fail(ErrorCode::not_found, "nothing to resume: {}",
         has_store ? "no store at " + config.store.path : "store.path is not set");
  }
  if (!options.resume && exists) {
    fail(ErrorCode::invalid_argument,
         "{} already holds a store: resume it (--resume), or choose another store.path", config.store.path);
  }
  Config planned = config;
  std::uint64_t held_bytes = 0;  // by the store: no longer free, but counted in the plan
  if (exists) {
    const StoreListing listing = list_store(config.store.path);
    compare_identity(listing.model, config, config.store.path);
    held_bytes = listing.total_bytes;
    planned.placement.chunk_numel = listing.chunk_numel;
    if (planned.placement.chunk_numel != config.placement.chunk_numel) {
      logger()->info("the store's chunks have {} elements; placement.chunk_numel = {} has no effect",
                     listing.chunk_numel, config.placement.chunk_numel);
    }
  }
  make_plan_that_fits(planned, held_bytes, warm_up_executor(config));
  logger()->info("device {}, matrix products by {}", "host", product_library());
  device_ = make_host_device(config.compute.adversarial);
  arenas_ = std::make_unique<Arenas>(*device_, plan_.arena_bytes[0], plan_.arena_bytes[1]);
  memory_.sample();
  open_storage(planned, options, exists);
  memory_.sample();

  RuntimeParts parts;
  parts.model = &model_;
  parts.plan = &plan_;
  parts.device = device_.get();
  parts.arenas = arenas_.get();
  parts.executor = executor_.get();
  parts.queue = queue_.get();
  parts.store = store_.get();
  parts.scratch = scratch_.get();
  parts.initial_master = [this, seed = config.train.seed](std::uint32_t c, float* master) {
    const Chunk& chunk = plan_.chunks[c];
    constexpr std::uint64_t kPiece =
        16 * kBlockNumel;  // a value depends on its element alone: any pieces will do
    parallel_for(div_up(chunk.numel, kPiece), [&](std::size_t piece) {
      for (const Segment& segment : chunk.segments) {
        const std::uint64_t from = std::max(segment.offset, piece * kPiece);
        const std::uint64_t to = std::min(segment.offset + segment.numel(), (piece + 1) * kPiece);
        if (from >= to) continue;
        const std::uint64_t begin = segment.begin + (from - segment.offset);
        fill_initial(tensors_[chunk.unit].tensors[segment.tensor], seed, begin, begin + (to - from),
                     master + from);
      }
    });
  };
  runtime_ =
      std::make_unique<Runtime>(parts, RuntimeOptions{config.compute.adversarial, options.adversarial_seed});
  runtime_->run(ProgramKind::materialize, {});
  memory_.sample();
}

Session::~Session() = default;

std::uint64_t Session::ledger_bytes() const {
  return plan_.ledger.total(Tier::device) + plan_.ledger.total(Tier::host);
}

// Returns the memory that came with it, the libraries' and the executor's own.
std::uint64_t Session::warm_up_executor(const Config& config) {
  const std::uint64_t before_bytes = process_memory().resident_bytes();
  executor_ = std::make_unique<GptExecutor>(spec_, config.train.micro_batch, compute_dtype(config),
                                            grad_dtype(config));
  executor_->warm_up();
  const std::uint64_t after_bytes = process_memory().resident_bytes();
  // Most of what a sanitizer shows is its own.
  return kSanitized ? 0 : after_bytes - std::min(before_bytes, after_bytes);
}

void Session::make_plan_that_fits(const Config& config, std::uint64_t held_bytes,
                                  std::uint64_t library_bytes) {
  const std::uint64_t free =
      config.tiers.nvme.empty() ? ~std::uint64_t{0} >> 2 : free_nvme_bytes(config) + held_bytes;
  HostOverhead overhead = host_overhead(config, model_, config.placement.chunk_numel);
  if (library_bytes > overhead.library_bytes + overhead.scratch_bytes) {
    // They take some more once lanes and disks work.
    overhead.library_bytes = round_up(library_bytes + library_bytes / 4 + 4 * kMiB, kMiB);
    logger()->info("the libraries hold {} here, more than `terrace plan` expects; the ledger counts {}",
                   format_bytes(library_bytes), format_bytes(overhead.library_bytes));
  }
  const auto plan_once = [&] {
    Plan plan = make_plan(plan_request(config, model_, config.placement.chunk_numel, free, overhead));
    if (!plan.fits) throw Error(ErrorCode::does_not_fit, refusal(plan));
    require_legal(model_, plan, config.train.micro_batches);
    return plan;
  };
  on_own_heap(
      [&] {
        Plan plan = plan_once();
        if (const std::uint64_t bytes = program_bytes(plan); bytes > overhead.program_bytes) {
          overhead.program_bytes = bytes + bytes / 8;
          plan = plan_once();
        }
        return plan;
      },
      plan_);
  memory_.sample();
}

StoreShape Session::store_shape(const Config& config) const {
  StoreShape shape;
  shape.chunk_numel = config.placement.chunk_numel;
  for (const StateStream& stream : adamw_streams()) {
    shape.streams.push_back({stream.name, std::string(dtype_name(stream.dtype))});
  }
  for (const Chunk& chunk : plan_.chunks) {
    StoreChunk stored;
    for (const Segment& segment : chunk.segments) {
      stored.segments.push_back(
          {model_.units[chunk.unit].tensors[segment.tensor].name, segment.begin, segment.end});
    }
    stored.payload_bytes = state_slot_bytes(chunk.numel) - kTrailerBytes;
    shape.chunks.push_back(std::move(stored));
  }
  shape.model = nlohmann::json{{"identity", identity_of(config)}, {"numerics", numerics_of(config)}}.dump();
  return shape;
}

void Session::open_storage(const Config& config, const SessionOptions& session_options, bool exists) {
  if (config.store.path.empty() && plan_.residents.scratch_bytes.empty()) return;
  IoQueueOptions options;
  options.depth = config.io.depth;
  options.piece_bytes = config.io.piece_bytes;
  options.hooks = session_options.io_hooks;
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
    if (store_->committed_step()) resumed_ = run_state_from_json(store_->run_state());
    return open_scratch(less(paths, store_->held()));
  }
  open_scratch(paths);  // first: it leaves nothing behind when there is no room for the store
  if (config.store.path.empty()) return;
  const auto room = scratch_ != nullptr ? less(paths, scratch_->held()) : paths;
  store_ = ExtentStore::create(*queue_, {config.store.path, room, config.commit.every_steps != 0},
                               store_shape(config));
}

std::string Session::state_hash() {
  StateHash hash(model_, plan_.chunks);
  runtime_->visitor = [&](const ChunkState& state) { hash.add(state); };
  runtime_->run(ProgramKind::visit, {});
  return to_hex(hash.value());
}

}  // namespace terrace
