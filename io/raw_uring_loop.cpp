#include "io/raw_uring_loop.h"

#include <cerrno>
#include <cstring>

#include "io/uring_ring.h"
#include "src/base/fail.h"

namespace terrace {

RawUringLoop::RawUringLoop(const DataFile& file, const AlignedMemory& memory, unsigned depth)
    : file_(file),
      memory_(memory),
      depth_(depth),
      half_bytes_(memory.size() / 2 / kRequestBytes * kRequestBytes) {
  check(half_bytes_ > 0 && depth > 0, "a raw loop of depth {} with {} bytes of buffers", depth,
        memory.size());
  if (const int error = set_up_ring(depth, &ring_); error < 0) {
    fail(ErrorCode::unsupported, "{}", ring_refusal(-error));
  }
  const int fd = file.fd();
  const iovec buffer{memory.data(), memory.size()};
  registered_ = memory.size() <= kGiB && io_uring_register_buffers(&ring_, &buffer, 1) == 0;
  if (const int error = io_uring_register_files(&ring_, &fd, 1); error != 0) {
    io_uring_queue_exit(&ring_);
    fail(ErrorCode::io_failed, "{}: cannot register the file: {}", file.path(), std::strerror(-error));
  }
}

RawUringLoop::~RawUringLoop() {
  io_uring_queue_exit(&ring_);
}

void RawUringLoop::run(const RawWork& work, std::uint64_t bytes, std::uint64_t write_offset_bytes) {
  const std::uint64_t total = bytes / kRequestBytes * (work.reads + work.writes);
  std::uint64_t begun = 0, ended = 0;
  int wrong = static_cast<int>(kRequestBytes);  // the first result that is not this
  const auto failed = [&] { return wrong != static_cast<int>(kRequestBytes); };
  while (ended < (failed() ? begun : total)) {
    for (; !failed() && begun < total && begun - ended < depth_; ++begun) {
      const bool read = work.reads && (!work.writes || begun % 2 == 0);
      prepare(read, work.reads && work.writes ? begun / 2 : begun, read ? 0 : write_offset_bytes);
    }
    const int submitted = io_uring_submit_and_wait(&ring_, 1);
    if (submitted < 0 && submitted != -EINTR) {
      fail(ErrorCode::io_failed, "{}: io_uring_enter: {}", file_.path(), std::strerror(-submitted));
    }
    io_uring_cqe* entry = nullptr;
    unsigned head = 0, count = 0;
    io_uring_for_each_cqe(&ring_, head, entry) {
      ++count;
      if (!failed()) wrong = entry->res;
    }
    io_uring_cq_advance(&ring_, count);
    ended += count;
  }
  if (failed()) {
    fail(ErrorCode::io_failed, "{}: a request of {} bytes: wanted all of them, got {}", file_.path(),
         kRequestBytes, wrong < 0 ? std::strerror(-wrong) : fmt::format("{}", wrong));
  }
}

void RawUringLoop::prepare(bool read, std::uint64_t index, std::uint64_t first_bytes) {
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  const std::uint64_t offset = first_bytes + index * kRequestBytes;
  std::byte* data = memory_.data() + (read ? 0 : half_bytes_) + index * kRequestBytes % half_bytes_;
  if (registered_) {
    if (read) io_uring_prep_read_fixed(entry, 0, data, kRequestBytes, offset, 0);
    if (!read) io_uring_prep_write_fixed(entry, 0, data, kRequestBytes, offset, 0);
  } else {
    if (read) io_uring_prep_read(entry, 0, data, kRequestBytes, offset);
    if (!read) io_uring_prep_write(entry, 0, data, kRequestBytes, offset);
  }
  entry->flags |= IOSQE_FIXED_FILE;
}

}  // namespace terrace
