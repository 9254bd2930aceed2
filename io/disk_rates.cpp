#include "io/disk_rates.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>

#include "io/io_queue.h"
#include "io/raw_uring_loop.h"
#include "src/base/fail.h"

namespace terrace {
namespace {

constexpr unsigned kDepth = 8;

// One folder's file and what moves its bytes.
class Probe {
 public:
  Probe(const std::string& folder, const DiskProbeOptions& options)
      : half_bytes_(options.bytes / 2 / kMiB * kMiB),
        file_(folder, DataFile::Mode::temporary),
        memory_(2 * kDepth * RawUringLoop::kRequestBytes, "the buffers of a disk probe") {
    file_.allocate(2 * half_bytes_);
    std::memset(memory_.data(), 0x5A, memory_.size());
    if (options.uring) {
      try {
        ring_ = std::make_unique<RawUringLoop>(file_, memory_, kDepth);
        return;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::unsupported) throw;
        why_no_ring_ = error.what();
      }
    }
    queue_ = make_thread_pool_queue(
        {.depth = kDepth, .piece_bytes = RawUringLoop::kRequestBytes, .threads = kDepth});
    queue_file_ = queue_->register_file(file_.fd(), file_.path());
  }

  std::uint64_t half_bytes() const { return half_bytes_; }
  std::string method() const {
    return fmt::format("{}, {}", ring_ ? "io_uring" : "threads",
                       file_.direct() ? "O_DIRECT" : "through the page cache: no disk may have been touched");
  }
  const std::string& why_no_ring() const { return why_no_ring_; }

  void run(const RawWork& work, std::uint64_t bytes, std::uint64_t write_offset_bytes) {
    if (ring_) return ring_->run(work, bytes, write_offset_bytes);
    run_queue(work, bytes, write_offset_bytes);
  }

 private:
  // One buffer a request; it is free again when the request has ended.
  void run_queue(const RawWork& work, std::uint64_t bytes, std::uint64_t write_offset_bytes) {
    constexpr std::uint64_t kRequestBytes = RawUringLoop::kRequestBytes;
    std::mutex mutex;
    std::condition_variable changed;
    std::exception_ptr failure;
    std::vector<std::byte*> free;
    for (unsigned i = 0; i < kDepth; ++i) free.push_back(memory_.data() + i * kRequestBytes);
    const auto submit = [&](IoDirection direction, std::uint64_t offset_bytes) {
      std::byte* data = nullptr;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return !free.empty(); });
        data = free.back();
        free.pop_back();
      }
      queue_->submit({direction, IoPriority::prefetch, queue_file_, offset_bytes, data, kRequestBytes,
                      [&, data](std::exception_ptr error) {
                        const std::lock_guard lock(mutex);
                        if (error && !failure) failure = std::move(error);
                        free.push_back(data);
                        changed.notify_one();
                      }});
    };
    for (std::uint64_t at = 0; at < bytes; at += kRequestBytes) {
      if (work.reads) submit(IoDirection::read, at);
      if (work.writes) submit(IoDirection::write, write_offset_bytes + at);
    }
    queue_->drain();
    if (failure) std::rethrow_exception(failure);
  }

  std::uint64_t half_bytes_;
  DataFile file_;
  AlignedMemory memory_;
  std::unique_ptr<RawUringLoop> ring_;
  std::string why_no_ring_;
  std::unique_ptr<IoQueue> queue_;  // where there is no ring
  IoFile queue_file_ = 0;
};

// Seconds until the last of them has done it.
template <typename Work>
double time_all(std::span<const std::unique_ptr<Probe>> probes, const Work& work) {
  std::vector<std::exception_ptr> failures(probes.size());
  const auto one = [&](std::size_t i) {
    try {
      work(*probes[i]);
    } catch (...) {
      failures[i] = std::current_exception();
    }
  };
  const auto start = std::chrono::steady_clock::now();
  {
    std::vector<std::jthread> others;
    for (std::size_t i = 1; i < probes.size(); ++i) others.emplace_back(one, i);
    one(0);
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return taken.count();
}

}  // namespace

DiskRates measure_disk(const std::vector<std::string>& folders, const DiskProbeOptions& options) {
  if (folders.empty()) fail(ErrorCode::invalid_argument, "no folder to measure the disk in");
  if (options.bytes < kLeastDiskProbeBytes) {
    fail(ErrorCode::invalid_argument, "the disk is measured on at least {}; got {}",
         format_bytes(kLeastDiskProbeBytes), format_bytes(options.bytes));
  }
  std::vector<std::unique_ptr<Probe>> probes;
  for (const std::string& folder : folders) probes.push_back(std::make_unique<Probe>(folder, options));
  const std::uint64_t half = probes[0]->half_bytes();
  const auto gbps = [&](double bytes_each, double seconds) {
    return bytes_each * static_cast<double>(probes.size()) / std::max(seconds, 1e-9) / 1e9;
  };
  const auto bytes = static_cast<double>(half);
  // The first write of allocated space is slower, and what was never written is not read from the disk.
  time_all(probes, [&](Probe& probe) { probe.run({false, true}, 2 * half, 0); });
  DiskRates rates;
  rates.read_gbps = gbps(2 * bytes, time_all(probes, [&](Probe& probe) {
                           probe.run({true, false}, 2 * half, 0);
                         }));
  rates.both_gbps = gbps(2 * bytes, time_all(probes, [&](Probe& probe) {
                           probe.run({true, true}, half, half);
                         }));
  // Half of the file each time: twice its size is written in all.
  rates.write_gbps = gbps(bytes, time_all(probes, [&](Probe& probe) {
                            probe.run({false, true}, half, half);
                          }));
  rates.method = fmt::format("{}, requests of 1 MiB, depth {}, on {}{}", probes[0]->method(), kDepth,
                             format_bytes(2 * half), probes.size() > 1 ? " in each folder" : "");
  if (!probes[0]->why_no_ring().empty()) rates.method += " (" + probes[0]->why_no_ring() + ")";
  return rates;
}

}  // namespace terrace
