// The roof that I/O is measured against, and the statistics it is quoted with.
#pragma once

#include <liburing.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "io/data_file.h"
#include "io/uring_ring.h"
#include "src/base/aligned_memory.h"
#include "src/base/fail.h"
#include "src/base/units.h"

namespace terrace {

struct RawWork {
  bool reads = false;
  bool writes = false;
};

// One thread, one ring, registered file, registered buffers in huge pages, requests of 1 MiB.
class RawUringLoop {
 public:
  static constexpr std::uint64_t kRequestBytes = kMiB;

  // `memory`: half for reads, half for writes.
  RawUringLoop(const DataFile& file, const AlignedMemory& memory, unsigned depth)
      : memory_(memory), depth_(depth), half_bytes_(memory.size() / 2 / kRequestBytes * kRequestBytes) {
    if (const int error = set_up_ring(depth, &ring_); error < 0) {
      fail(ErrorCode::unsupported, "{}", ring_refusal(-error));
    }
    const int fd = file.fd();
    const iovec buffer{memory.data(), memory.size()};
    registered_ = memory.size() <= kGiB && io_uring_register_buffers(&ring_, &buffer, 1) == 0;
    if (io_uring_register_files(&ring_, &fd, 1) != 0)
      fail(ErrorCode::io_failed, "cannot register {}", file.path());
  }
  ~RawUringLoop() { io_uring_queue_exit(&ring_); }
  RawUringLoop(const RawUringLoop&) = delete;
  RawUringLoop& operator=(const RawUringLoop&) = delete;

  bool registered() const { return registered_; }

  // Moves `bytes` (a multiple of 1 MiB) in each direction of `work`: reads from the file's begin, writes from
  // `write_offset_bytes` on.
  void run(const RawWork& work, std::uint64_t bytes, std::uint64_t write_offset_bytes) {
    const std::uint64_t total = bytes / kRequestBytes * (work.reads + work.writes);
    std::uint64_t begun = 0, ended = 0;
    while (ended < total) {
      for (; begun < total && begun - ended < depth_; ++begun) {
        const bool read = work.reads && (!work.writes || begun % 2 == 0);
        prepare(read, work.reads && work.writes ? begun / 2 : begun, read ? 0 : write_offset_bytes);
      }
      io_uring_submit_and_wait(&ring_, 1);
      io_uring_cqe* entry = nullptr;
      unsigned head = 0, count = 0;
      io_uring_for_each_cqe(&ring_, head, entry) {
        ++count;
        if (entry->res != static_cast<int>(kRequestBytes))
          fail(ErrorCode::io_failed, "raw loop: got {}", entry->res);
      }
      io_uring_cq_advance(&ring_, count);
      ended += count;
    }
  }

 private:
  void prepare(bool read, std::uint64_t index, std::uint64_t first_bytes) {
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

  const AlignedMemory& memory_;
  unsigned depth_;
  std::uint64_t half_bytes_;
  bool registered_ = false;
  io_uring ring_{};
};

inline double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// Median and median absolute deviation.
inline nlohmann::json median_and_mad(const std::vector<double>& values) {
  const double middle = median_of(values);
  std::vector<double> away;
  for (const double value : values) away.push_back(std::abs(value - middle));
  return {{"median", middle}, {"mad", median_of(away)}};
}

}  // namespace terrace
