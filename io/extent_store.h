// The store: every chunk's optimizer state on disk, two extents a chunk, one commit record. The store is the
// checkpoint (docs/store-format.md).
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/io_queue.h"
#include "io/scratch.h"

namespace terrace {

// Bytes of the trailer that ends every extent.
inline constexpr std::uint64_t kTrailerBytes = 4096;

// An element range of a logical, unpadded tensor: the on-disk identity, never a rank or a world size.
struct StoreSegment {
  std::string tensor;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct StoreStream {  // one array of a chunk's state, at offset_bytes of every chunk's payload is the reader's rule
  std::string name;   // "master", "exp_avg", "exp_avg_sq"
  std::string dtype;  // "fp32"
};

struct StoreChunk {
  std::vector<StoreSegment> segments;
  std::uint64_t payload_bytes = 0;  // multiple of 4096
};

struct StoreShape {
  std::uint64_t chunk_numel = 0;
  std::vector<StoreStream> streams;
  std::vector<StoreChunk> chunks;
  std::string model;  // free JSON of the writer: kept, handed back, shown by `store ls`
};

struct StoreOptions {
  std::string path;                 // the store's directory: manifest and record
  std::vector<VolumePath> volumes;  // where the data files lie; empty: in `path` itself
  bool two_extents = true;          // false: one extent a chunk, nothing is ever committed, no resume
};

// What an extent carries beside its payload.
struct ChunkVersion {
  std::uint64_t step = 0;                    // iteration that wrote it
  std::vector<std::uint64_t> segment_steps;  // Adam's step count of each segment
};

// Thread contract: read and write from any thread; commit when no write is under way; one transfer a chunk at a
// time. All errors name path, offset, wanted and got, or the chunk and what its trailer said.
class ExtentStore {
 public:
  // Refuses a directory that already holds a store (invalid_argument), space that is not there (does_not_fit; nothing is
  // left behind). `queue` must outlive the store.
  static std::unique_ptr<ExtentStore> create(IoQueue& queue, const StoreOptions& options, const StoreShape& shape);

  // Opens to write: locks (busy, with the holder's process id, after 5 s of retries), chooses the cut, checks its sum,
  // takes an epoch. Throws not_found by name for a missing path (with the tensors that lie on it), corrupt for a cut that
  // does not add up.
  static std::unique_ptr<ExtentStore> open(IoQueue& queue, const std::string& path);

  static bool exists(const std::string& path);

  virtual ~ExtentStore() = default;

  virtual const StoreShape& shape() const = 0;
  virtual std::optional<std::uint64_t> committed_step() const = 0;  // none before the first commit
  virtual const std::string& run_state() const = 0;                 // as given to the last commit; empty before it
  virtual bool written(std::size_t chunk) const = 0;                // false: reads as its initial value
  virtual ChunkVersion version(std::size_t chunk) const = 0;        // of the newest extent; empty when never written

  // `extent`: payload_bytes + kTrailerBytes, 4096-aligned; the trailer's place is the store's to use. A read fills
  // the payload and checks the trailer (corrupt by chunk, path and offset when it differs).
  virtual IoTicket read(std::size_t chunk, std::span<std::byte> extent, IoPriority priority,
                        std::function<void(std::exception_ptr)> done) = 0;

  // Writes the working extent (never the committed one). Cost: one checksum of the payload on the calling thread.
  virtual IoTicket write(std::size_t chunk, std::span<std::byte> extent, const ChunkVersion& version,
                         IoPriority priority, std::function<void(std::exception_ptr)> done) = 0;

  // Makes everything written so far, with `run_state` (at most 1 MiB; sampler, schedule, loss scale, counts), the cut that
  // the next opening finds. Flush, record, flush; blocks. With one extent a chunk: internal error.
  virtual void commit(std::uint64_t step, const std::string& run_state) = 0;
};

}  // namespace terrace
