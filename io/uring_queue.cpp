// IoQueue by io_uring: registered files and buffers, one thread that submits and waits.
//
// All system calls of the ring come from that one thread, so a thread that submitted may end: the kernel
// cancels what an ending thread has in flight. Callers only wake it, and only while it waits with room for
// another piece. Another thread calls `done`, so that a checksum there does not hold the disk up.
#include <liburing.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "io/piece_queue.h"
#include "io/uring_ring.h"
#include "src/base/fail.h"
#include "src/base/log.h"
#include "src/base/units.h"

namespace terrace {
namespace {

constexpr std::uint64_t kMaxBufferBytes = kGiB;  // the kernel refuses larger ones
constexpr unsigned kMaxBuffers = 1024;
constexpr unsigned kMaxFiles = 256;

void block_signals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

class UringQueue final : public PieceQueue {
 public:
  explicit UringQueue(const IoQueueOptions& options) : PieceQueue(options) {
    const int result = set_up_ring(depth() * kMaxDisks + 2, &ring_);
    if (result < 0) fail(ErrorCode::unsupported, "{}", ring_refusal(-result));
    wake_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_fd_ < 0) {
      const int error = errno;
      io_uring_queue_exit(&ring_);
      fail(ErrorCode::io_failed, "eventfd: {}", std::strerror(error));
    }
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    file_slots_ = static_cast<unsigned>(std::min<rlim_t>(kMaxFiles, limit.rlim_cur));
    if (io_uring_register_files_sparse(&ring_, file_slots_) != 0) file_slots_ = 0;  // before Linux 5.19
    try {
      mover_ = std::thread([this] { move(); });
      caller_ = std::thread([this] { call_done(); });
    } catch (const std::system_error& error) {
      stop_threads();
      fail(ErrorCode::does_not_fit, "cannot start the threads of the I/O queue: {}", error.what());
    }
  }

  ~UringQueue() override { stop_threads(); }

  std::string name() const override { return "io_uring"; }
  bool register_buffers(std::span<const std::span<std::byte>> buffers) override;

 private:
  void stop_threads() {
    stop();
    {
      const Lock guard = lock();
      wake();
    }
    if (mover_.joinable()) mover_.join();
    {
      const Lock guard = lock();
      moved_all_ = true;
    }
    ended_.notify_all();
    if (caller_.joinable()) caller_.join();
    io_uring_queue_exit(&ring_);
    ::close(wake_fd_);
  }

  struct Buffer {  // registered memory, sorted by address
    std::byte* begin;
    std::byte* end;
    unsigned index;
  };

  void wake_done(const Lock&) override { ended_.notify_one(); }
  void wake_mover(const Lock&) override {
    if (waits_) wake();
  }

  // Under the lock. The mover finds the event when it next looks, so one is enough.
  void wake() {
    if (woken_) return;
    woken_ = true;
    const std::uint64_t one = 1;
    while (::write(wake_fd_, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
  }

  void file_added(const Lock& guard, IoFile index) override {
    bool fixed = false;
    if (index < file_slots_) {
      const int fd = file(guard, index).fd;
      fixed = io_uring_register_files_update(&ring_, index, &fd, 1) == 1;  // else by its descriptor
    }
    fixed_files_.push_back(fixed);
  }

  // The registered buffer that holds [data, data + bytes) whole, or -1.
  int buffer_of(const std::byte* data, std::uint64_t bytes) const {
    auto after =
        std::upper_bound(buffers_.begin(), buffers_.end(), data,
                         [](const std::byte* at, const Buffer& buffer) { return at < buffer.begin; });
    if (after == buffers_.begin()) return -1;
    const Buffer& buffer = *--after;
    return data + bytes <= buffer.end ? static_cast<int>(buffer.index) : -1;
  }

  io_uring_sqe* next_entry() {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr && io_uring_submit(&ring_) > 0) entry = io_uring_get_sqe(&ring_);
    check(entry != nullptr, "the ring has more entries than pieces in flight");
    return entry;
  }

  void prepare(Piece& piece) {
    const Call& call = piece.call;
    const bool fixed = fixed_files_[call.file];
    const int fd = fixed ? static_cast<int>(call.file) : call.fd;
    const auto bytes = static_cast<unsigned>(call.bytes);
    const int buffer = buffer_of(call.data, call.bytes);
    io_uring_sqe* entry = next_entry();
    if (call.direction == IoDirection::read) {
      if (buffer >= 0) io_uring_prep_read_fixed(entry, fd, call.data, bytes, call.offset_bytes, buffer);
      if (buffer < 0) io_uring_prep_read(entry, fd, call.data, bytes, call.offset_bytes);
    } else {
      if (buffer >= 0) io_uring_prep_write_fixed(entry, fd, call.data, bytes, call.offset_bytes, buffer);
      if (buffer < 0) io_uring_prep_write(entry, fd, call.data, bytes, call.offset_bytes);
    }
    if (fixed) entry->flags |= IOSQE_FIXED_FILE;
    if (piece.retries > 0) entry->flags |= IOSQE_ASYNC;  // may sleep for what it lacked
    io_uring_sqe_set_data(entry, &piece);
  }

  void listen() {
    io_uring_sqe* entry = next_entry();
    io_uring_prep_poll_add(entry, wake_fd_, POLLIN);
    io_uring_sqe_set_data(entry, nullptr);
  }

  struct Result {
    Piece* piece;
    std::int64_t result;
  };

  // Takes what has completed; hears the wake event. Not under the lock.
  bool harvest(std::vector<Result>& results) {
    bool heard = false;
    unsigned head = 0, count = 0;
    io_uring_cqe* entry = nullptr;
    io_uring_for_each_cqe(&ring_, head, entry) {
      ++count;
      auto* piece = static_cast<Piece*>(io_uring_cqe_get_data(entry));
      if (piece == nullptr) {
        heard = true;
      } else {
        results.push_back({piece, entry->res});
      }
    }
    io_uring_cq_advance(&ring_, count);
    if (heard) {
      std::uint64_t events = 0;
      while (::read(wake_fd_, &events, sizeof(events)) < 0 && errno == EINTR) {
      }
    }
    for (Result& r : results) r.result = see(*r.piece, r.result);
    return heard;
  }

  void move() {
    block_signals();
    std::vector<Result> results;
    results.reserve(depth() * kMaxDisks);
    int refusals = 0;
    Lock guard = lock();
    listen();
    while (true) {
      while (Piece* piece = next_piece(guard)) prepare(*piece);
      if (stopping(guard) && idle(guard)) break;
      waits_ = true;
      guard.unlock();
      const int entered = io_uring_submit_and_wait(&ring_, 1);
      results.clear();
      const bool heard = harvest(results);
      if (entered >= 0 || !results.empty()) refusals = 0;
      if (entered < 0 && entered != -EINTR &&
          results.empty()) {  // short of memory: the kernel may have it later
        if (++refusals == 1000)
          logger()->critical("io_uring_enter keeps failing: {}", std::strerror(-entered));
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      guard.lock();
      waits_ = false;
      if (heard) {
        woken_ = false;
        listen();
      }
      for (const Result& r : results) {
        if (end_call(guard, *r.piece, r.result)) prepare(*r.piece);
      }
    }
  }

  void call_done() {
    block_signals();
    Lock guard = lock();
    while (true) {
      ended_.wait(guard, [&] { return done_waits(guard) || moved_all_; });
      if (!run_done(guard)) return;
    }
  }

  io_uring ring_{};
  int wake_fd_ = -1;
  unsigned file_slots_ = 0;
  std::vector<bool> fixed_files_;  // by IoFile
  std::vector<Buffer> buffers_;
  bool buffer_table_ = false;
  bool waits_ = false;      // the mover is in the kernel, or about to enter it
  bool woken_ = false;      // an event is on its way to it
  bool moved_all_ = false;  // it has ended
  std::condition_variable ended_;
  std::thread mover_;
  std::thread caller_;
};

bool UringQueue::register_buffers(std::span<const std::span<std::byte>> buffers) {
  const Lock guard = lock();
  std::vector<iovec> parts;
  std::uint64_t total_bytes = 0;
  for (const auto& buffer : buffers) {
    for (std::size_t at = 0; at < buffer.size(); at += kMaxBufferBytes) {
      parts.push_back({buffer.data() + at, std::min<std::size_t>(kMaxBufferBytes, buffer.size() - at)});
    }
    total_bytes += buffer.size();
  }
  if (parts.empty()) return true;
  int result = buffer_table_ ? 0 : io_uring_register_buffers_sparse(&ring_, kMaxBuffers);
  if (result == 0) buffer_table_ = true;
  const auto first = static_cast<unsigned>(buffers_.size());
  if (result == 0 && first + parts.size() > kMaxBuffers) result = -E2BIG;
  std::size_t done = 0;
  for (; result >= 0 && done < parts.size(); ++done) {
    const auto index = static_cast<unsigned>(first + done);
    result = io_uring_register_buffers_update_tag(&ring_, index, &parts[done], nullptr, 1);
    if (result < 0) break;
  }
  if (result < 0) {
    for (std::size_t i = 0; i < done;
         ++i) {  // all or nothing: what is locked here would be missing elsewhere
      const iovec none{nullptr, 0};
      io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(first + i), &none, nullptr, 1);
    }
    // The kernel counts what is registered (and the ring's own memory) by the user, what is locked by the
    // process: one limit serves both.
    const std::string remedy =
        result == -ENOMEM
            ? fmt::format(
                  "; `ulimit -l` of {} KiB allows it, for all programs of this user that register memory "
                  "together",
                  div_up(total_bytes + kMiB, kKiB))
            : "";
    logger()->warn(
        "io_uring: {} of I/O buffers cannot be registered: {} (ulimit -l is {}); transfers run "
        "unregistered{}",
        format_bytes(total_bytes), std::strerror(-result), memlock_limit(), remedy);
    return false;
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    auto* begin = static_cast<std::byte*>(parts[i].iov_base);
    buffers_.push_back({begin, begin + parts[i].iov_len, static_cast<unsigned>(first + i)});
  }
  std::sort(buffers_.begin(), buffers_.end(),
            [](const Buffer& a, const Buffer& b) { return a.begin < b.begin; });
  return true;
}

}  // namespace

std::unique_ptr<IoQueue> make_uring_queue(const IoQueueOptions& options) {
  return std::make_unique<UringQueue>(options);
}

}  // namespace terrace
