// The one way bytes move between memory and files: a deep queue of prioritised transfers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace terrace {

enum class IoDirection : std::uint8_t { read, write };

// Lower passes higher: a demanded read passes prefetches, and both pass write backs.
enum class IoPriority : std::uint8_t { demand = 0, prefetch = 1, write_back = 2 };
inline constexpr int kIoPriorities = 3;

using IoFile = std::uint32_t;    // index of a registered file
using IoTicket = std::uint64_t;  // names a submitted transfer; 0 is none

struct IoRequest {
  IoDirection direction = IoDirection::read;
  IoPriority priority = IoPriority::demand;
  IoFile file = 0;
  std::uint64_t offset_bytes = 0;  // multiple of 4096 where the file is open with O_DIRECT
  std::byte* data = nullptr;       // 4096-aligned likewise; must stay valid until `done` has been called
  // Any size; cut into pieces of IoQueueOptions::piece_bytes (a last block of 4096 rides along). With
  // O_DIRECT the part of a block at the end goes through a copy; a write of it first reads the block, and may
  // leave the file longer, by zeros up to a multiple of 4096.
  std::uint64_t bytes = 0;
  // Called exactly once, from a thread of the queue or its destructor, with null on success or a
  // terrace::Error (io_failed) that names path, offset, wanted and got. Must be short and must not throw; it
  // may submit, but not wait for this queue (drain, flush of what is still under way).
  std::function<void(std::exception_ptr)> done;
};

class IoHooks;

struct IoQueueOptions {
  std::uint32_t depth = 16;                  // pieces in flight at once on each disk
  std::uint64_t piece_bytes = 1u << 20;      // size of a piece
  std::uint32_t threads = 4;                 // of the thread-pool queue only: for each disk
  std::shared_ptr<IoHooks> hooks = nullptr;  // tests inject faults here (io/io_hooks.h)
};

struct IoQueueStats {
  std::uint64_t read_bytes = 0;
  std::uint64_t written_bytes = 0;
  std::uint64_t pieces = 0;
  std::uint64_t resumed_pieces = 0;  // short transfers and EINTR that were resumed
  std::uint64_t busy_us = 0;         // time with at least one piece in flight
};

// Thread contract: any function from any thread at any time; a file or buffer is registered before the first
// transfer that uses it, and stays until the queue is gone. Each transfer is cut into pieces; pieces of all
// transfers to files of one disk (one device number) share a deep queue, which never drains between
// transfers; disks do not wait for each other; within a priority they run in order of submission. While
// demanded reads or prefetches keep the disk busy, write backs still get a share of the depth
// (io/transfer_order.h). Every result is checked: a short transfer is resumed, end of file on a read is an
// error, the first failing piece fails its transfer (once all of its pieces in flight have ended). The
// destructor waits for what is in flight and fails the rest with ErrorCode::cancelled. A thread that
// submitted may end before its transfers do.
class IoQueue {
 public:
  virtual ~IoQueue() = default;

  // "io_uring", "threads", ...: for the log and the doctor.
  virtual std::string name() const = 0;

  // The queue does not own `fd`; it must outlive the queue. `path` is for messages.
  virtual IoFile register_file(int fd, std::string path) = 0;

  // Registers memory that transfers will use (in buffers of at most 1 GiB). Best effort: returns false, and
  // says once in the log why, when the system refuses; transfers then run unregistered.
  virtual bool register_buffers(std::span<const std::span<std::byte>> buffers) = 0;

  // Misuse (an unknown file, an unaligned direct transfer) throws internal; `done` is then not called.
  virtual IoTicket submit(IoRequest request) = 0;

  // Raises a transfer that has not been started whole to IoPriority::demand; no effect on a finished one.
  virtual void promote(IoTicket ticket) = 0;

  // fdatasync of one file; the caller has waited for its writes. Throws io_failed by path. Blocks.
  virtual void flush(IoFile file) = 0;

  // Returns when every transfer submitted before has called `done`.
  virtual void drain() = 0;

  virtual IoQueueStats stats() const = 0;
};

// io_uring where the kernel allows it; throws unsupported with the system's reason where not.
std::unique_ptr<IoQueue> make_uring_queue(const IoQueueOptions& options);
std::unique_ptr<IoQueue> make_thread_pool_queue(const IoQueueOptions& options);

// The first where it works, else the second; which and why is logged once. TERRACE_IO=uring|threads forces
// one.
std::unique_ptr<IoQueue> make_io_queue(const IoQueueOptions& options);

}  // namespace terrace
