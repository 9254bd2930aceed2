// Store, scratch and queue of an engine.
#include <array>
#include <filesystem>
#include <system_error>

#include "src/base/fail.h"
#include "src/engine/engine.h"
#include "src/engine/store_identity.h"

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

}  // namespace

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

}  // namespace terrace
