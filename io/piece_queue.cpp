#include "io/piece_queue.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "src/base/fail.h"
#include "src/base/units.h"

namespace terrace {
namespace {

constexpr std::uint32_t kMaxRetries = 1000;  // of one call without progress

std::uint64_t now_us() {
  using std::chrono::duration_cast;
  using std::chrono::microseconds;
  return static_cast<std::uint64_t>(
      duration_cast<microseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

// What the device reads and writes whole: a direct transfer ends inside one only at the end of a file.
std::uint64_t sector_bytes(int fd) {
#ifdef STATX_DIOALIGN
  struct statx status {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 &&
      (status.stx_mask & STATX_DIOALIGN) != 0 && status.stx_dio_offset_align > 0 &&
      kIoBlockBytes % status.stx_dio_offset_align == 0) {
    return status.stx_dio_offset_align;
  }
#endif
  (void)fd;
  return 512;
}

std::string_view direction_name(IoDirection direction) {
  return direction == IoDirection::read ? "read" : "write";
}

std::exception_ptr make_error(ErrorCode code, std::string message) {
  return std::make_exception_ptr(Error(code, message));
}

}  // namespace

PieceQueue::PieceQueue(const IoQueueOptions& options)
    : piece_bytes_(options.piece_bytes), hooks_(options.hooks), depth_(options.depth) {
  if (options.depth == 0 || options.depth > 4096) {
    fail(ErrorCode::invalid_argument, "I/O queue depth: wanted 1 to 4096, got {}", options.depth);
  }
  if (piece_bytes_ == 0 || piece_bytes_ % kIoBlockBytes != 0 || piece_bytes_ > kGiB) {
    fail(ErrorCode::invalid_argument, "I/O piece size: wanted a multiple of 4096 up to 1 GiB, got {}",
         piece_bytes_);
  }
}

void PieceQueue::add_disk(std::uint64_t id) {
  disks_.push_back({id, TransferOrder(depth_), 0});
  for (std::uint32_t i = 0; i < depth_; ++i) free_.push_back(&pieces_.emplace_back());
}

std::size_t PieceQueue::find_or_add_disk(const Lock& guard, int fd, const std::string& path) {
  struct stat status {};
  std::uint64_t id = ::fstat(fd, &status) == 0 ? status.st_dev : 0;
  if (hooks_) id = hooks_->disk_of(path, id);
  for (std::size_t d = 0; d < disks_.size(); ++d) {
    if (disks_[d].id == id) return d;
  }
  if (disks_.size() == kMaxDisks) return id % kMaxDisks;
  add_disk(id);
  if (disks_.size() > 1) disk_added(guard);
  return disks_.size() - 1;
}

IoFile PieceQueue::register_file(int fd, std::string path) {
  const int flags = ::fcntl(fd, F_GETFL);  // a bad descriptor shows when it is used
  const bool direct = flags >= 0 && (flags & O_DIRECT) != 0;
  const std::uint64_t unit_bytes = direct ? sector_bytes(fd) : 1;
  const Lock guard = lock();
  const std::size_t disk = find_or_add_disk(guard, fd, path);
  files_.push_back({fd, direct, unit_bytes, std::move(path), disk});
  const auto index = static_cast<IoFile>(files_.size() - 1);
  file_added(guard, index);
  return index;
}

IoTicket PieceQueue::submit(IoRequest request) {
  const Lock guard = lock();
  check(request.file < files_.size(), "submit to file {} of {}", request.file, files_.size());
  const File& target = files_[request.file];
  check(!target.direct || (request.offset_bytes % kIoBlockBytes == 0 &&
                           reinterpret_cast<std::uintptr_t>(request.data) % kIoBlockBytes == 0),
        "{} of {} at offset {} from {}: direct transfers begin at multiples of 4096",
        direction_name(request.direction), target.path, request.offset_bytes, fmt::ptr(request.data));
  const IoTicket ticket = ++last_ticket_;
  auto transfer = std::make_unique<Transfer>();
  transfer->ticket = ticket;
  transfer->request = std::move(request);
  Transfer& added = *live_.emplace(ticket, std::move(transfer)).first->second;
  if (stopping_) {
    added.error = make_error(ErrorCode::cancelled, fmt::format("{} of {} at offset {}: the queue is closing",
                                                               direction_name(added.request.direction),
                                                               target.path, added.request.offset_bytes));
    retire(guard, added);
  } else {
    Disk& disk = disk_of(added);
    disk.order.add(ticket, added.request.priority);
    if (disk.in_flight < depth_) wake_mover(guard);
  }
  return ticket;
}

void PieceQueue::promote(IoTicket ticket) {
  const Lock guard = lock();
  const auto found = live_.find(ticket);
  if (found != live_.end()) disk_of(*found->second).order.promote(ticket);
}

bool PieceQueue::piece_waits(const Lock&) const {
  for (const Disk& disk : disks_) {
    if (disk.in_flight < depth_ && !disk.order.empty()) return true;
  }
  return false;
}

void PieceQueue::flush(IoFile index) {
  int fd = -1;
  std::string path;
  {
    const Lock guard = lock();
    check(index < files_.size(), "flush of file {} of {}", index, files_.size());
    fd = files_[index].fd;
    path = files_[index].path;
  }
  int result = 0;
  for (std::uint32_t tries = 0; tries < kMaxRetries; ++tries) {
    result = ::fdatasync(fd) == 0 ? 0 : -errno;
    if (hooks_) result = hooks_->see_flush(path, result);
    if (result != -EINTR) break;
  }
  if (result != 0) fail(ErrorCode::io_failed, "flush of {}: {}", path, std::strerror(-result));
}

void PieceQueue::drain() {
  Lock guard = lock();
  const IoTicket last = last_ticket_;
  drained_.wait(guard, [&] { return live_.empty() || live_.begin()->first > last; });
}

IoQueueStats PieceQueue::stats() const {
  const Lock guard = lock();
  IoQueueStats stats = stats_;
  if (!idle(guard)) stats.busy_us += now_us() - busy_since_us_;
  return stats;
}

void PieceQueue::prepare_call(Piece& piece) {
  const IoFile index = piece.transfer->request.file;
  const File& target = files_[index];
  Call& call = piece.call;
  call = {piece.direction,
          index,
          target.fd,
          piece.offset_bytes + piece.moved_bytes,
          piece.io_data + piece.moved_bytes,
          piece.io_bytes - piece.moved_bytes};
  if (hooks_ && call.bytes > 0) {
    call.bytes = hooks_->ask_bytes(
        {call.direction, target.path, target.unit_bytes, call.offset_bytes, {call.data, call.bytes}});
  }
}

PieceQueue::Piece* PieceQueue::next_piece(const Lock& guard) {
  IoPriority priority{};
  IoTicket ticket = 0;
  for (std::size_t i = 0; i < disks_.size() && ticket == 0; ++i) {
    Disk& disk = disks_[next_disk_++ % disks_.size()];
    if (disk.in_flight < depth_) ticket = disk.order.start(priority);
    if (ticket != 0) ++disk.in_flight;
  }
  if (ticket == 0) return nullptr;
  if (idle(guard)) busy_since_us_ = now_us();
  Piece& piece = *free_.back();
  free_.pop_back();

  Transfer& transfer = *live_.at(ticket);
  const IoRequest& request = transfer.request;
  const bool direct = files_[request.file].direct;
  const std::uint64_t left = request.bytes - transfer.cut_bytes;
  const std::uint64_t blocks = direct ? left - left % kIoBlockBytes : left;
  piece.transfer = &transfer;
  piece.priority = priority;
  piece.tail = direct && left > 0 && blocks == 0;
  // A single block left over rides along: a piece of its own costs as much as a whole one.
  const std::uint64_t most = blocks == piece_bytes_ + kIoBlockBytes ? blocks : piece_bytes_;
  piece.bytes = piece.tail ? left : std::min(blocks, most);
  piece.offset_bytes = request.offset_bytes + transfer.cut_bytes;
  piece.data = request.data + transfer.cut_bytes;
  piece.direction = request.direction;
  piece.io_data = piece.data;
  piece.io_bytes = piece.bytes;
  piece.moved_bytes = 0;
  piece.retries = 0;
  if (piece.tail) {
    if (!piece.bounce) {
      piece.bounce.reset(static_cast<std::byte*>(std::aligned_alloc(kIoBlockBytes, kIoBlockBytes)));
    }
    check(piece.bounce != nullptr, "no memory for a block of 4096 bytes");
    std::memset(piece.bounce.get(), 0, kIoBlockBytes);
    piece.direction = IoDirection::read;
    piece.io_data = piece.bounce.get();
    piece.io_bytes = kIoBlockBytes;
  }
  transfer.cut_bytes += piece.bytes;
  ++transfer.in_flight;
  ++stats_.pieces;
  if (transfer.cut_bytes == request.bytes) {
    transfer.whole = true;
    disk_of(transfer).order.remove(ticket);
  }
  prepare_call(piece);
  return &piece;
}

std::int64_t PieceQueue::see(const Piece& piece, std::int64_t result) const {
  if (!hooks_) return result;
  Lock guard = lock();
  const File& target = files_[piece.call.file];
  guard.unlock();
  return hooks_->see_result({piece.call.direction,
                             target.path,
                             target.unit_bytes,
                             piece.call.offset_bytes,
                             {piece.call.data, piece.call.bytes}},
                            result);
}

bool PieceQueue::end_call(const Lock& guard, Piece& piece, std::int64_t result) {
  const IoRequest& request = piece.transfer->request;
  const std::uint64_t unit_bytes = files_[request.file].unit_bytes;
  const bool merging =
      piece.tail && request.direction == IoDirection::write && piece.direction == IoDirection::read;
  const bool reading = piece.direction == IoDirection::read;

  if (result == -EINTR || result == -EAGAIN) {
    if (++piece.retries < kMaxRetries) {
      ++stats_.resumed_pieces;
      prepare_call(piece);
      return true;
    }
  }
  if (result < 0) {
    end_piece(guard, piece, describe(piece, std::strerror(static_cast<int>(-result))));
    return false;
  }
  auto got = static_cast<std::uint64_t>(result);
  bool at_end = reading && got == 0;
  if (got % unit_bytes != 0) {
    if (reading) at_end = true;
    if (!reading) got -= got % unit_bytes;  // that part again
  }
  piece.moved_bytes += got;

  const std::uint64_t needed = piece.tail && reading && !merging ? piece.bytes : piece.io_bytes;
  const bool complete = piece.moved_bytes >= needed || (merging && at_end);
  if (!complete) {
    if (at_end) {
      end_piece(guard, piece, describe(piece, "end of file"));
      return false;
    }
    piece.retries = got == 0 ? piece.retries + 1 : 0;
    if (piece.retries >= kMaxRetries) {
      end_piece(guard, piece, describe(piece, "no progress"));
      return false;
    }
    ++stats_.resumed_pieces;
    prepare_call(piece);
    return true;
  }
  if (merging) {
    std::memcpy(piece.bounce.get(), piece.data, piece.bytes);
    piece.direction = IoDirection::write;
    piece.moved_bytes = 0;
    piece.retries = 0;
    prepare_call(piece);
    return true;
  }
  if (piece.tail && reading) std::memcpy(piece.data, piece.bounce.get(), piece.bytes);
  (reading ? stats_.read_bytes : stats_.written_bytes) += piece.bytes;
  end_piece(guard, piece, nullptr);
  return false;
}

std::exception_ptr PieceQueue::describe(const Piece& piece, std::string_view why) const {
  return make_error(
      ErrorCode::io_failed,
      fmt::format("{} of {} at offset {}: wanted {} bytes, got {}: {}", direction_name(piece.direction),
                  files_[piece.transfer->request.file].path, piece.offset_bytes, piece.bytes,
                  std::min(piece.moved_bytes, piece.bytes), why));
}

void PieceQueue::end_piece(const Lock& guard, Piece& piece, std::exception_ptr error) {
  Transfer& transfer = *piece.transfer;
  Disk& disk = disk_of(transfer);
  disk.order.ended(piece.priority);
  --disk.in_flight;
  piece.transfer = nullptr;
  free_.push_back(&piece);
  --transfer.in_flight;
  if (error && (!transfer.error || piece.offset_bytes < transfer.error_offset_bytes)) {
    transfer.error = std::move(error);
    transfer.error_offset_bytes = piece.offset_bytes;
    transfer.whole = true;  // the rest is not cut
    disk.order.remove(transfer.ticket);
  }
  if (idle(guard)) stats_.busy_us += now_us() - busy_since_us_;
  if (transfer.whole && transfer.in_flight == 0) retire(guard, transfer);
}

void PieceQueue::retire(const Lock& guard, Transfer& transfer) {
  ended_.push_back(&transfer);
  wake_done(guard);
}

bool PieceQueue::run_done(Lock& guard) {
  if (ended_.empty()) return false;
  Transfer& transfer = *ended_.front();
  ended_.pop_front();
  guard.unlock();
  if (transfer.request.done) transfer.request.done(std::move(transfer.error));  // keeps no reference
  transfer.request.done = nullptr;  // what it holds goes before drain() returns
  guard.lock();
  live_.erase(transfer.ticket);
  drained_.notify_all();
  return true;
}

void PieceQueue::stop() {
  const Lock guard = lock();
  stopping_ = true;
  for (Disk& disk : disks_) {
    for (IoTicket ticket = disk.order.first(); ticket != 0; ticket = disk.order.first()) {
      disk.order.remove(ticket);
      Transfer& transfer = *live_.at(ticket);
      transfer.whole = true;
      const IoRequest& request = transfer.request;
      transfer.error = make_error(
          ErrorCode::cancelled,
          fmt::format("{} of {} at offset {}: wanted {} bytes, {} were begun when the queue was closed",
                      direction_name(request.direction), files_[request.file].path, request.offset_bytes,
                      request.bytes, transfer.cut_bytes));
      if (transfer.in_flight == 0) retire(guard, transfer);
    }
  }
}

}  // namespace terrace
