// What the queues share: transfers are cut into pieces, ordered, resumed when short, checked, and ended. A
// backend moves one piece at a time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "io/io_hooks.h"
#include "io/io_queue.h"
#include "io/transfer_order.h"

namespace terrace {

// The granule of direct transfers: offsets and buffers are multiples of it.
inline constexpr std::uint64_t kIoBlockBytes = 4096;

class PieceQueue : public IoQueue {
 public:
  IoFile register_file(int fd, std::string path) override;
  IoTicket submit(IoRequest request) override;
  void promote(IoTicket ticket) override;
  void flush(IoFile file) override;
  void drain() override;
  IoQueueStats stats() const override;

 protected:
  using Lock = std::unique_lock<std::mutex>;

  struct File {
    int fd = -1;
    bool direct = false;
    std::uint64_t unit_bytes = 1;  // what a transfer's length is a multiple of, unless the file ends
    std::string path;
    std::size_t disk = 0;
  };

  struct Transfer {
    IoTicket ticket = 0;
    IoRequest request;
    std::uint64_t cut_bytes = 0;  // handed out as pieces so far
    bool whole = false;           // nothing more is to be cut
    std::uint32_t in_flight = 0;
    std::exception_ptr error;              // of the failed piece that lies first
    std::uint64_t error_offset_bytes = 0;  // where that is
  };

  // What a call to the kernel moves: the next bytes of a piece.
  struct Call {
    IoDirection direction = IoDirection::read;
    IoFile file = 0;
    int fd = -1;
    std::uint64_t offset_bytes = 0;
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
  };

  // A part of a transfer that is in flight. A tail (the last part of a block of an O_DIRECT file) goes
  // through `bounce`; a tail's write first reads the block, so that what follows the tail stays as it is.
  struct Piece {
    Transfer* transfer = nullptr;
    IoPriority priority = IoPriority::demand;
    std::uint64_t offset_bytes = 0;
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    bool tail = false;
    IoDirection direction = IoDirection::read;  // of the present pass
    std::byte* io_data = nullptr;
    std::uint64_t io_bytes = 0;     // asked of the kernel in this pass
    std::uint64_t moved_bytes = 0;  // of io_bytes
    std::uint32_t retries = 0;      // without progress
    Call call;                      // the last one prepared
    std::unique_ptr<std::byte, decltype(&std::free)> bounce{nullptr, &std::free};
  };

  // Throws invalid_argument for a depth or piece size that cannot be.
  explicit PieceQueue(const IoQueueOptions& options);
  ~PieceQueue() override = default;

  Lock lock() const { return Lock(mutex_); }
  std::uint32_t depth() const { return depth_; }  // of a disk
  bool stopping(const Lock&) const { return stopping_; }
  bool idle(const Lock&) const { return free_.size() == pieces_.size(); }
  bool piece_waits(const Lock&) const;
  const File& file(const Lock&, IoFile index) const { return files_[index]; }

  // The next piece to move, with its call prepared; null when none waits on a disk whose depth is not
  // reached. Disks take turns.
  Piece* next_piece(const Lock& lock);

  // Applies the hooks to what the kernel said. Not under the lock.
  std::int64_t see(const Piece& piece, std::int64_t result) const;

  // Takes the result (bytes, or -errno) of piece.call. True: the piece goes on, its next call is prepared.
  bool end_call(const Lock& lock, Piece& piece, std::int64_t result);

  // Calls `done` of one ended transfer, with the lock released meanwhile. False when none has ended.
  bool run_done(Lock& lock);
  bool done_waits(const Lock&) const { return !ended_.empty(); }

  // Fails everything that has not been started. Derived destructors call it, end their threads, then
  // run_done().
  void stop();

  // Told under the lock: pieces wait; transfers have ended; a file was registered.
  virtual void wake_mover(const Lock& lock) = 0;
  virtual void wake_done(const Lock& lock) = 0;
  virtual void file_added(const Lock&, IoFile) {}
  virtual void disk_added(const Lock&) {}  // not the first

  // Disks with a depth of their own; what lies on more shares these.
  static constexpr std::size_t kMaxDisks = 8;

 private:
  // Files on one device share its depth and order: one deep queue a disk.
  struct Disk {
    std::uint64_t id = 0;
    TransferOrder order;
    std::uint32_t in_flight = 0;
  };

  std::size_t find_or_add_disk(const Lock& lock, int fd, const std::string& path);
  void add_disk(std::uint64_t id);
  Disk& disk_of(const Transfer& transfer) { return disks_[files_[transfer.request.file].disk]; }
  void prepare_call(Piece& piece);
  void end_piece(const Lock& lock, Piece& piece, std::exception_ptr error);
  std::exception_ptr describe(const Piece& piece, std::string_view why) const;
  void retire(const Lock& lock, Transfer& transfer);

  const std::uint64_t piece_bytes_;
  const std::shared_ptr<IoHooks> hooks_;

  mutable std::mutex mutex_;
  std::condition_variable drained_;
  std::deque<File> files_;  // references stay valid
  std::map<IoTicket, std::unique_ptr<Transfer>> live_;
  std::deque<Transfer*> ended_;  // `done` is still to be called
  const std::uint32_t depth_;
  std::deque<Disk> disks_;
  std::size_t next_disk_ = 0;  // whose turn it is
  std::deque<Piece> pieces_;   // depth_ for each disk; addresses stay valid
  std::vector<Piece*> free_;
  IoTicket last_ticket_ = 0;
  bool stopping_ = false;
  IoQueueStats stats_;
  std::uint64_t busy_since_us_ = 0;
};

}  // namespace terrace
