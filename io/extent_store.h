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
#include "src/base/hash.h"

namespace terrace {

// Bytes of the trailer that ends every extent.
inline constexpr std::uint64_t kTrailerBytes = 4096;
// Segments of one chunk: what a trailer has room for.
inline constexpr std::size_t kMaxSegments = 498;
// Bytes of the run state (sampler, schedule, loss scale, counts).
inline constexpr std::uint64_t kMaxRunStateBytes = std::uint64_t{1} << 20;

// An element range of a logical, unpadded tensor: the on-disk identity, never a rank or a world size.
struct StoreSegment {
  std::string tensor;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::string slice = {};  // which slice of the tensor the range counts in; empty: the whole tensor
};

// One array of a chunk's state. Where it lies in the payload is the reader's rule (in this order, end to
// end).
struct StoreStream {
  std::string name;   // "master", "exp_avg", "exp_avg_sq"
  std::string dtype;  // "fp32"
};

struct StoreChunk {
  std::vector<StoreSegment> segments;  // 1 to kMaxSegments; no element lies in two chunks
  std::uint64_t payload_bytes = 0;     // multiple of 4096
};

struct StoreShape {
  std::uint64_t chunk_numel = 0;
  std::vector<StoreStream> streams;
  std::vector<StoreChunk> chunks;
  std::string model;  // free text of the writer (JSON): kept, handed back, shown by `store ls`
};

struct StoreOptions {
  std::string path;                 // the store's directory: manifest and record; made when it is not there
  std::vector<VolumePath> volumes;  // folders (they must exist) of the data files; empty: in `path` itself
  // false: one extent a chunk, nothing is ever committed, no resume. Such a store is gone when it is closed,
  // and a killed run's is reclaimed by the next creation in the same directory.
  bool two_extents = true;
  std::uint32_t lock_wait_ms = 5000;  // how long to retry when another process is creating a store there
};

struct StoreOpenOptions {
  std::uint32_t lock_wait_ms = 5000;  // how long to retry a lock that another process holds
};

// What an extent carries beside its payload.
struct ChunkVersion {
  std::uint64_t step = 0;                    // iteration that wrote it
  std::vector<std::uint64_t> segment_steps;  // Adam's step count of each segment
};

// What one of several processes of a run adds to a commit: which chunks it answers for (the sum of their
// identities), the change of the cut's sum by them, and the epochs that their newest extents carry.
struct CommitShare {
  Hash128 own;
  Hash128 added;
  Hash128 removed;
  std::vector<std::uint64_t> epochs;
};

// Bytes of the two extents that hold the run state.
inline constexpr std::uint64_t kRunStateBytes = 2 * (kMaxRunStateBytes + kTrailerBytes);

// Thread contract: read and write from any thread; commit when no write is under way and until it returns no
// write may start, reads may; one write of a chunk at a time and no read beside it. All errors name path,
// offset, wanted and got, or the chunk and what its trailer said. After a failed write, flush or record the
// store takes no more writes or commits and repeats that error.
class ExtentStore {
 public:
  // Refuses a directory that already holds a store (invalid_argument), a missing volume (not_found), space
  // that is not there (does_not_fit; nothing is left behind). What a killed creation left is reclaimed first.
  // `queue` must outlive the store. Allocates all extents; writes only the manifest and the record.
  static std::unique_ptr<ExtentStore> create(IoQueue& queue, const StoreOptions& options,
                                             const StoreShape& shape);

  // Opens to write: locks (busy, with the holder's process id, after lock_wait_ms of retries), chooses the
  // cut, checks its sum, takes an epoch. Throws not_found by name for a missing path (with the tensors that
  // lie on it), corrupt for a manifest, record or cut that does not add up. Cost: two 4 KiB reads a chunk,
  // one record, flushes.
  static std::unique_ptr<ExtentStore> open(IoQueue& queue, const std::string& path,
                                           const StoreOpenOptions& options = {});

  // Several processes of one run on one store: one of them, the leader, creates or opens it and then shares
  // it; the others join it then. Each writes the chunks that it owns, the leader also the run state and the
  // record. A commit is: every process has ended its writes and prepares; the leader commits with what the
  // others prepared; the others are told. All of it or nothing is committed.
  //
  // Of a chunk that is not its own, a process reads what was committed before the run, until the run's first
  // commit (after it: internal). The processes are of one machine: the leader's flush is everybody's.
  //
  // join_run: opens as a member, when the leader has shared the store in `epoch`; waits for nothing else.
  // Writes nothing. Throws as open(), and busy where the store is in another epoch by now.
  static std::unique_ptr<ExtentStore> join_run(IoQueue& queue, const std::string& path, std::uint64_t epoch,
                                               const std::vector<bool>& own,
                                               const StoreOpenOptions& options = {});

  // Whether `path` holds a whole store (not: a creation that was killed).
  static bool exists(const std::string& path);

  virtual ~ExtentStore() = default;

  virtual const StoreShape& shape() const = 0;
  virtual const std::string& path() const = 0;
  virtual std::uint64_t epoch() const = 0;                          // of this run
  virtual std::optional<std::uint64_t> committed_step() const = 0;  // none before the first commit
  // As given to the last commit (a member's: as found in the cut it opened); empty before it.
  virtual const std::string& run_state() const = 0;
  virtual std::vector<VolumePath> held() const = 0;   // the folder of each data file, and the file's bytes
  virtual bool written(std::size_t chunk) const = 0;  // false: reads as its initial value
  virtual ChunkVersion version(
      std::size_t chunk) const = 0;  // of the newest extent; empty when never written

  // `extent`: payload_bytes + kTrailerBytes, 4096-aligned; the trailer's place is the store's to use. A read
  // fills the payload from the newest extent and checks trailer and checksum, on a thread of the queue
  // (corrupt by chunk, tensors, path and offset when they differ). Reading a chunk never written is an error
  // of ours (internal).
  virtual IoTicket read(std::size_t chunk, std::span<std::byte> extent, IoPriority priority,
                        std::function<void(std::exception_ptr)> done) = 0;

  // Writes the working extent (never the committed one). version.step is above the step this run committed
  // last (at or above the one it opened at). Cost: one checksum of the payload on the calling thread.
  virtual IoTicket write(std::size_t chunk, std::span<std::byte> extent, const ChunkVersion& version,
                         IoPriority priority, std::function<void(std::exception_ptr)> done) = 0;

  // Makes everything written so far, with `run_state` (at most kMaxRunStateBytes), the cut that the next
  // opening finds; `step` is at or above every step written. Flush, record, flush; blocks. With one extent a
  // chunk: internal error.
  // `others`: of a shared store, what the members prepared for this step; each chunk must be of one process
  // (else internal). After a failure nothing is committed, and the members must be ended too.
  virtual void commit(std::uint64_t step, const std::string& run_state,
                      std::span<const CommitShare> others = {}) = 0;

  // The leader's: lets members in. From now on this handle writes the chunks that are `own` alone. Throws
  // busy where another run took the store in that moment; unsupported with one extent a chunk.
  virtual void share(const std::vector<bool>& own) = 0;
  // A member's part of the commit of `step`, when its writes have ended; it writes no more before
  // committed(). Throws a failed write's error; internal for a second call before committed().
  virtual CommitShare prepare(std::uint64_t step) = 0;
  // The leader has committed `step`: what was prepared is the cut, the extents before it may be written.
  virtual void committed(std::uint64_t step) = 0;
};

}  // namespace terrace
