// `store ls` and `store verify`: readers that take no lock and no epoch.
#include <algorithm>

#include "io/store_files.h"
#include "io/store_view.h"
#include "src/base/fail.h"
#include "src/base/units.h"
#include "terrace/store.h"

namespace terrace {
namespace {

constexpr int kTries = 50;  // a run that commits while we look makes us look again

class Reader {
 public:
  explicit Reader(const std::string& path)
      : queue_(make_io_queue({})),
        directory_(resolve(path)),
        manifest_(read_manifest(directory_)),
        files_(open_files(*queue_, directory_, manifest_, DataFile::Mode::open_readonly)),
        ids_(identities(manifest_)) {}

  // Record, trailers and cut of one commit. No extent of a commit is written before the next commit's record
  // is, so what was read between two readings of the same record is that record's.
  void look() {
    for (int i = 0; i < kTries; ++i) {
      record_ = settled_record();
      trailers_ = read_trailers(*queue_, files_, manifest_);
      if (settled_record().sequence != record_.sequence) continue;
      cut_ = choose_cut(record_, ids_, trailers_);
      check_cut(manifest_, files_, record_, cut_, trailers_);
      if (committed(run_state_chunk())) {
        try {
          run_state_ =
              read_run_state(*queue_, files_, manifest_, cut_.extents.back(), trailer(run_state_chunk()));
        } catch (const Error&) {
          if (settled_record().sequence != record_.sequence) continue;
          run_state_.clear();  // verify() says so, with its place
        }
      }
      return;
    }
    fail(ErrorCode::busy, "{}: the run of process {} commits faster than the store can be read", directory_,
         record_.process_id);
  }

  StoreListing list() const {
    StoreListing listing;
    listing.path = directory_;
    listing.id = to_hex(manifest_.id);
    listing.committed_step = record_.committed_step;
    listing.epoch = record_.epoch;
    listing.process_id = record_.process_id;
    listing.chunk_numel = manifest_.shape.chunk_numel;
    listing.model = manifest_.shape.model;
    listing.run_state = run_state_;
    for (const StoreStream& stream : manifest_.shape.streams)
      listing.streams.push_back({stream.name, stream.dtype});
    for (const EpochEntry& entry : record_.epochs)
      listing.epochs.push_back({entry.epoch, entry.committed_step});
    for (std::size_t i = 0; i < manifest_.paths.size(); ++i) {
      listing.paths.push_back({files_.data[i].path(), manifest_.paths[i].file_bytes, 0});
      listing.total_bytes += manifest_.paths[i].file_bytes;
    }
    for (std::size_t i = 0; i < manifest_.shape.chunks.size(); ++i) {
      listing.chunks.push_back(chunk(i));
      ++listing.paths[listing.chunks.back().path].chunks;
    }
    return listing;
  }

  StoreVerdict verify(const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
    StoreVerdict verdict;
    verdict.committed_step = record_.committed_step;
    std::uint64_t total = 0;
    std::uint64_t largest = kRunStateExtentBytes;  // a running commit may make it longer
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      if (!committed(i)) continue;
      total += checked_bytes(i);
      largest = std::max(largest, checked_bytes(i));
    }
    const AlignedBlock block(largest);
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      if (!committed(i)) {
        if (i != run_state_chunk()) ++verdict.initial_chunks;
        continue;
      }
      if (const std::string why = check_chunk(i, block); !why.empty()) verdict.bad.push_back(why);
      ++verdict.checked_extents;
      verdict.checked_bytes += checked_bytes(i);
      if (progress) progress(verdict.checked_bytes, std::max(total, verdict.checked_bytes));
    }
    return verdict;
  }

 private:
  std::size_t run_state_chunk() const { return manifest_.shape.chunks.size(); }
  bool committed(std::size_t chunk) const { return cut_.extents[chunk] != kNoExtent; }
  const Trailer& trailer(std::size_t chunk) const {
    return trailers_[chunk][static_cast<std::size_t>(cut_.extents[chunk])].trailer;
  }
  std::uint64_t checked_bytes(std::size_t chunk) const {
    return round_up(std::min(trailer(chunk).payload_bytes, extent_bytes(manifest_, chunk) - kTrailerBytes),
                    4096) +
           kTrailerBytes;
  }

  // A writer may be in the middle of a record: look again before it is called damaged.
  Record settled_record() {
    for (int i = 0; i < kTries; ++i) {
      try {
        return read_record(*queue_, files_, manifest_);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::corrupt) throw;
      }
    }
    return read_record(*queue_, files_, manifest_);
  }

  // Empty, or what is wrong. A chunk that a running commit has moved is looked up again.
  std::string check_chunk(std::size_t i, const AlignedBlock& block) {
    for (int tries = 0; tries < kTries; ++tries) {
      const int extent = cut_.extents[i];
      const ExtentPlace& place = manifest_.places[i];
      const std::uint64_t bytes = checked_bytes(i);
      std::string why;
      try {
        transfer(*queue_, IoDirection::read, files_.data_ids[place.path],
                 place.offset_bytes[static_cast<std::size_t>(extent)] + extent_bytes(manifest_, i) - bytes,
                 block.span().first(bytes));
        why = check_extent(block.span().first(bytes), trailer(i));
      } catch (const Error& error) {
        why = error.what();
      }
      if (why.empty()) return {};
      if (settled_record().sequence == record_.sequence) {
        return describe_extent(manifest_, files_, i, extent) + ": " + why;
      }
      look();
    }
    fail(ErrorCode::busy, "{}: the run of process {} commits faster than {} can be read", directory_,
         record_.process_id, describe_chunk(manifest_, i));
  }

  StoreListing::Chunk chunk(std::size_t i) const {
    StoreListing::Chunk result;
    const StoreChunk& chunk = manifest_.shape.chunks[i];
    const ExtentPlace& place = manifest_.places[i];
    result.payload_bytes = chunk.payload_bytes;
    result.path = place.path;
    result.committed = committed(i);
    result.offset_bytes =
        place.offset_bytes[result.committed ? static_cast<std::size_t>(cut_.extents[i]) : 0];
    for (std::size_t s = 0; s < chunk.segments.size(); ++s) {
      const StoreSegment& segment = chunk.segments[s];
      const std::uint64_t steps = result.committed ? trailer(i).segment_steps[s] : 0;
      result.segments.push_back({segment.tensor, segment.begin, segment.end, steps, segment.slice});
    }
    if (!result.committed) return result;
    result.epoch = trailer(i).epoch;
    result.step = trailer(i).step;
    return result;
  }

  std::unique_ptr<IoQueue> queue_;
  std::string directory_;
  Manifest manifest_;
  StoreFiles files_;
  std::vector<Hash128> ids_;
  Record record_;
  std::vector<ChunkTrailers> trailers_;
  Cut cut_;
  std::string run_state_;
};

}  // namespace

StoreListing list_store(const std::string& path) {
  Reader reader(path);
  reader.look();
  return reader.list();
}

StoreVerdict verify_store(const std::string& path,
                          const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  Reader reader(path);
  reader.look();
  return reader.verify(progress);
}

}  // namespace terrace
