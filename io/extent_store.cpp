#include "io/extent_store.h"

#include <unistd.h>
#include <filesystem>

#include <algorithm>
#include <cstring>
#include <utility>

#include "io/store_files.h"
#include "io/store_impl.h"
#include "src/base/fail.h"
#include "src/base/log.h"
#include "src/base/units.h"

namespace terrace {

StoreImpl::StoreImpl(IoQueue& queue, Parts parts) : queue_(queue), parts_(std::move(parts)) {
  const std::vector<Hash128> ids = identities(parts_.manifest);
  chunks_.resize(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    chunks_[i].identity = ids[i];
    if (parts_.cut.empty() || parts_.cut[i] == kNoExtent) continue;
    const auto extent = static_cast<std::size_t>(parts_.cut[i]);
    chunks_[i].committed = chunks_[i].newest = parts_.cut[i];
    chunks_[i].trailers[extent] = std::move(parts_.trailers[i][extent].trailer);
  }
  parts_.trailers.clear();
}

StoreImpl::~StoreImpl() {
  {
    Lock lock(mutex_);
    idle_.wait(lock, [&] { return reads_ + writes_ == 0; });
  }
  if (parts_.manifest_fd < 0) return;
  // One extent a chunk: nothing here can be resumed, so nothing is left. The list of the files goes last.
  for (const DataFile& file : parts_.files.data) remove_data_file(file);
  ::unlink(join(parts_.directory, kHolderName).c_str());
  ::unlink(join(parts_.directory, kUnfinishedName).c_str());
  parts_.manifest_lock.release();
  ::close(parts_.manifest_fd);
}

std::uint64_t StoreImpl::epoch() const {
  const Lock lock(mutex_);
  return parts_.record.epoch;
}

std::optional<std::uint64_t> StoreImpl::committed_step() const {
  const Lock lock(mutex_);
  return parts_.record.committed_step;
}

std::vector<VolumePath> StoreImpl::held() const {
  std::vector<VolumePath> held;
  for (const ManifestPath& path : parts_.manifest.paths) {
    held.push_back({std::filesystem::path(parts_.directory) / path.directory, path.file_bytes});
  }
  return held;
}

bool StoreImpl::written(std::size_t chunk) const {
  const Lock lock(mutex_);
  return known(lock, chunk).newest != kNoExtent;
}

ChunkVersion StoreImpl::version(std::size_t chunk) const {
  const Lock lock(mutex_);
  const Chunk& state = known(lock, chunk);
  if (state.newest == kNoExtent) return {};
  const Trailer& trailer = state.trailers[static_cast<std::size_t>(state.newest)];
  return {trailer.step, trailer.segment_steps};
}

// Of another process's chunk this one knows the extent of the cut that it opened, which a commit sets free.
const StoreImpl::Chunk& StoreImpl::known(const Lock&, std::size_t chunk) const {
  check(chunk < run_state_chunk(), "chunk {} of {}", chunk, run_state_chunk());
  check(chunks_[chunk].own || !moved_on_,
        "{} is another process's: what it holds since the last commit is not known here",
        describe_chunk(parts_.manifest, chunk));
  return chunks_[chunk];
}

std::uint64_t StoreImpl::offset_of(std::size_t chunk, int extent) const {
  return parts_.manifest.places[chunk].offset_bytes[static_cast<std::size_t>(extent)];
}

StoreImpl::Chunk& StoreImpl::take(const Lock&, std::size_t chunk, std::span<std::byte> extent, bool writes) {
  check(chunk < run_state_chunk(), "chunk {} of {}", chunk, run_state_chunk());
  check(extent.size() >= extent_bytes(parts_.manifest, chunk), "{}: a buffer of {} bytes for an extent of {}",
        describe_chunk(parts_.manifest, chunk), extent.size(), extent_bytes(parts_.manifest, chunk));
  check(reinterpret_cast<std::uintptr_t>(extent.data()) % 4096 == 0,
        "{}: a buffer at {}, wanted a multiple of 4096", describe_chunk(parts_.manifest, chunk),
        fmt::ptr(extent.data()));
  const Chunk& state = chunks_[chunk];
  check(!state.writing && !(writes && state.readers > 0), "{}: two transfers at once, one of which writes",
        describe_chunk(parts_.manifest, chunk));
  return chunks_[chunk];
}

// Never the committed one. What is newer than the commit is overwritten in place.
int StoreImpl::working_extent(const Chunk& chunk) const {
  if (!parts_.manifest.two_extents || chunk.committed == kNoExtent) return 0;
  return 1 - chunk.committed;
}

IoTicket StoreImpl::read(std::size_t chunk, std::span<std::byte> extent, IoPriority priority,
                         std::function<void(std::exception_ptr)> done) {
  IoRequest request;
  Trailer wanted;
  int from = kNoExtent;
  {
    const Lock lock(mutex_);
    known(lock, chunk);
    Chunk& state = take(lock, chunk, extent, false);
    check(state.newest != kNoExtent, "{} is read before it was written",
          describe_chunk(parts_.manifest, chunk));
    ++state.readers;
    ++reads_;
    from = state.newest;
    wanted = state.trailers[static_cast<std::size_t>(from)];
  }
  const std::span<std::byte> bytes = extent.first(extent_bytes(parts_.manifest, chunk));
  request.direction = IoDirection::read;
  request.priority = priority;
  request.file = parts_.files.data_ids[parts_.manifest.places[chunk].path];
  request.offset_bytes = offset_of(chunk, from);
  request.data = bytes.data();
  request.bytes = bytes.size();
  request.done = [this, chunk, from, bytes, wanted = std::move(wanted),
                  call = std::move(done)](std::exception_ptr error) {
    if (!error) {
      if (const std::string why = check_extent(bytes, wanted); !why.empty()) {
        error = std::make_exception_ptr(
            Error(ErrorCode::corrupt,
                  "store " + describe_extent(parts_.manifest, parts_.files, chunk, from) + ": " + why));
      }
    }
    ended_read(chunk);
    call(error);
  };
  try {
    return queue_.submit(std::move(request));
  } catch (...) {
    ended_read(chunk);
    throw;
  }
}

void StoreImpl::ended_read(std::size_t chunk) {
  const Lock lock(mutex_);
  --chunks_[chunk].readers;
  --reads_;
  if (reads_ + writes_ == 0) idle_.notify_all();
}

void StoreImpl::check_usable(const Lock&) const {
  if (failed_) std::rethrow_exception(failed_);
}

void StoreImpl::check_step(const Lock&, std::uint64_t step) const {
  const Record& record = parts_.record;
  if (!record.committed_step) return;
  // What is written between two commits must not look committed by the first.
  const bool by_this_run = is_committed(record, record.epoch, *record.committed_step);
  check(by_this_run ? step > *record.committed_step : step >= *record.committed_step,
        "a write of step {} after the commit of step {}", step, *record.committed_step);
}

IoTicket StoreImpl::write(std::size_t chunk, std::span<std::byte> extent, const ChunkVersion& version,
                          IoPriority priority, std::function<void(std::exception_ptr)> done) {
  {
    const Lock lock(mutex_);
    Chunk& state = take(lock, chunk, extent, true);
    check_usable(lock);
    check(!committing_, "{} is written during a commit", describe_chunk(parts_.manifest, chunk));
    check(state.own, "{} is another process's to write", describe_chunk(parts_.manifest, chunk));
    check_step(lock, version.step);
    const std::size_t segments = parts_.manifest.shape.chunks[chunk].segments.size();
    check(version.segment_steps.size() == segments, "{}: {} step counts for {} segments",
          describe_chunk(parts_.manifest, chunk), version.segment_steps.size(), segments);
    state.writing = true;
  }
  const std::uint64_t payload_bytes = parts_.manifest.shape.chunks[chunk].payload_bytes;
  return write_extent(chunk, extent.first(payload_bytes + kTrailerBytes), payload_bytes, version, priority,
                      std::move(done));
}

// `tail` is the end of the extent: the payload, padded to 4096, and the trailer's place.
IoTicket StoreImpl::write_extent(std::size_t chunk, std::span<std::byte> tail, std::uint64_t payload_bytes,
                                 const ChunkVersion& version, IoPriority priority,
                                 std::function<void(std::exception_ptr)> done) {
  Trailer trailer;
  int extent = 0;
  {
    const Lock lock(mutex_);
    Chunk& state = chunks_[chunk];
    extent = working_extent(state);
    state.writing = true;
    state.newest = state.committed;  // until the write has ended, the working extent is nothing
    ++writes_;
    trailer.identity = state.identity;
    trailer.epoch = parts_.record.epoch;
  }
  IoRequest request;
  try {
    trailer.store_id = parts_.manifest.id;
    trailer.step = version.step;
    trailer.segment_steps = version.segment_steps;
    trailer.payload_bytes = payload_bytes;
    trailer.payload_checksum = hash128(tail.data(), payload_bytes);
    trailer.extent = static_cast<std::uint32_t>(extent);
    encode_trailer(trailer, tail.last<kTrailerBytes>());
    {
      const Lock lock(mutex_);
      chunks_[chunk].trailers[static_cast<std::size_t>(extent)] = std::move(trailer);
    }
    request.direction = IoDirection::write;
    request.priority = priority;
    request.file = parts_.files.data_ids[parts_.manifest.places[chunk].path];
    request.offset_bytes = offset_of(chunk, extent) + extent_bytes(parts_.manifest, chunk) - tail.size();
    request.data = tail.data();
    request.bytes = tail.size();
    request.done = [this, chunk, extent, call = std::move(done)](const std::exception_ptr& error) {
      ended_write(chunk, extent, error);
      call(error);
    };
    return queue_.submit(std::move(request));
  } catch (...) {
    ended_write(chunk, extent, std::current_exception());
    throw;
  }
}

void StoreImpl::ended_write(std::size_t chunk, int extent, const std::exception_ptr& error) {
  const Lock lock(mutex_);
  Chunk& state = chunks_[chunk];
  state.writing = false;
  if (error) {
    if (!failed_) failed_ = error;
  } else {
    state.newest = extent;
    const std::uint64_t step = state.trailers[static_cast<std::size_t>(extent)].step;
    highest_step_ = std::max(highest_step_.value_or(0), step);
  }
  --writes_;
  if (reads_ + writes_ == 0) idle_.notify_all();
}

}  // namespace terrace
