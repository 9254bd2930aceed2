// The store of one process, behind ExtentStore. Creation and opening build one of these.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "io/extent_store.h"
#include "io/store_lock.h"
#include "io/store_view.h"

namespace terrace {

class StoreImpl final : public ExtentStore {
 public:
  // Everything a store starts from. `locks` must hold the files' locks.
  struct Parts {
    std::string directory;
    Manifest manifest;
    StoreFiles files;
    StoreLock locks;
    Record record;                        // as it stands on the disk
    std::vector<int> cut;                 // of each chunk and the run state; empty: nothing was ever written
    std::vector<ChunkTrailers> trailers;  // likewise
    std::string run_state;
    // Of a store of one extent a chunk: its creation never ends, so the next one reclaims what a killed run
    // left.
    int manifest_fd = -1;
    StoreLock manifest_lock;
  };

  StoreImpl(IoQueue& queue, Parts parts);
  ~StoreImpl() override;

  // Opening's last step: a record with this run's epoch in the other place, flushed. When the list of epochs
  // is full, rewrites the oldest epochs' chunks and commits.
  void begin_run();

  const StoreShape& shape() const override { return parts_.manifest.shape; }
  const std::string& path() const override { return parts_.directory; }
  std::uint64_t epoch() const override;
  std::optional<std::uint64_t> committed_step() const override;
  const std::string& run_state() const override { return parts_.run_state; }
  std::vector<VolumePath> held() const override;
  bool written(std::size_t chunk) const override;
  ChunkVersion version(std::size_t chunk) const override;
  IoTicket read(std::size_t chunk, std::span<std::byte> extent, IoPriority priority,
                std::function<void(std::exception_ptr)> done) override;
  IoTicket write(std::size_t chunk, std::span<std::byte> extent, const ChunkVersion& version,
                 IoPriority priority, std::function<void(std::exception_ptr)> done) override;
  void commit(std::uint64_t step, const std::string& run_state, std::span<const CommitShare> others) override;
  void share(const std::vector<bool>& own) override;
  CommitShare prepare(std::uint64_t step) override;
  void committed(std::uint64_t step) override;
  // As a member: the leader keeps record and epoch.
  void become_member(const std::vector<bool>& own);

 private:
  struct Chunk {
    Hash128 identity;
    int committed = kNoExtent;
    int newest = kNoExtent;
    bool own = true;                  // false: of another process, which alone writes it
    bool writing = false;             // a write is under way
    std::uint32_t readers = 0;        // reads under way
    std::array<Trailer, 2> trailers;  // of what was written or found, where newest or committed
  };
  using Lock = std::unique_lock<std::mutex>;

  std::size_t run_state_chunk() const { return parts_.manifest.shape.chunks.size(); }
  std::uint64_t offset_of(std::size_t chunk, int extent) const;
  Chunk& take(const Lock&, std::size_t chunk, std::span<std::byte> extent, bool writes);
  int working_extent(const Chunk& chunk) const;
  void check_step(const Lock&, std::uint64_t step) const;
  void check_usable(const Lock&) const;
  IoTicket write_extent(std::size_t chunk, std::span<std::byte> tail, std::uint64_t payload_bytes,
                        const ChunkVersion& version, IoPriority priority,
                        std::function<void(std::exception_ptr)> done);
  void ended_read(std::size_t chunk);
  void ended_write(std::size_t chunk, int extent, const std::exception_ptr& error);

  void begin_epoch();
  void rewrite_oldest();
  void write_run_state(std::uint64_t step, const std::string& run_state);
  void flush_data();
  void write_record(const Record& record);
  Record next_record() const;
  std::vector<std::uint64_t> carried(bool newest) const;
  void set_own(const std::vector<bool>& own);
  CommitShare own_share(const Lock&) const;
  void check_shares(const Lock&, std::span<const CommitShare> others) const;
  const Chunk& known(const Lock&, std::size_t chunk) const;

  IoQueue& queue_;
  Parts parts_;
  mutable std::mutex mutex_;
  std::condition_variable idle_;
  std::vector<Chunk> chunks_;
  std::size_t reads_ = 0;  // under way
  std::size_t writes_ = 0;
  bool committing_ = false;
  bool shared_ = false;                        // with other processes
  bool member_ = false;                        // of which this is not the leader
  bool moved_on_ = false;                      // shared, and committed since: others' extents are not known
  std::optional<std::uint64_t> prepared_;      // a member's: the step whose commit it waits for
  std::optional<std::uint64_t> highest_step_;  // of what was written since the last commit
  std::exception_ptr failed_;
};

}  // namespace terrace
