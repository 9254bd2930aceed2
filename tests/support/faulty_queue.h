// An IoQueue with faults: below it, in the calls to the kernel, and above it, in the order of transfers.
#pragma once

#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "io/io_hooks.h"
#include "io/io_queue.h"

namespace terrace {

// What goes wrong. Chances are of each call to the kernel; numbered faults strike once, at the n-th call of
// their kind (from 1; 0 = never).
struct FaultPlan {
  std::uint64_t seed = 1;
  double short_transfers = 0;  // a part is asked for only
  double ragged_writes = 0;    // fewer bytes are seen than were written, any number
  double interrupts = 0;       // EINTR is seen
  double again = 0;            // EAGAIN is seen
  double delays = 0;           // up to max_delay_us
  std::uint32_t max_delay_us = 300;
  bool reorder = false;  // transfers are held a moment and handed on in a random order

  std::uint64_t fail_read_at = 0;
  std::uint64_t fail_write_at = 0;
  std::uint64_t fail_flush_at = 0;
  int error = EIO;
  std::uint64_t flip_read_at = 0;  // one bit of what was read
  std::string only_path = "";      // faults strike files whose path contains it
};

struct FaultCounts {
  std::uint64_t reads = 0, writes = 0, flushes = 0;
  std::uint64_t shortened = 0, ragged = 0, interrupted = 0, again = 0, delayed = 0, failed = 0, flipped = 0,
                reordered = 0;
};

// The faults below a queue alone, for IoQueueOptions::hooks. Thread contract: as IoHooks.
class FaultHooks final : public IoHooks {
 public:
  explicit FaultHooks(const FaultPlan& plan) : plan_(plan), random_(plan.seed) {}

  FaultCounts counts() const;

  std::uint64_t ask_bytes(const IoCall& call) override;
  std::int64_t see_result(const IoCall& call, std::int64_t result) override;
  int see_flush(const std::string& path, int result) override;

 private:
  bool strikes(const std::string& path) const { return path.find(plan_.only_path) != std::string::npos; }
  bool chance(double p);
  std::int64_t fault(const IoCall& call, std::int64_t result);

  const FaultPlan plan_;
  mutable std::mutex mutex_;
  std::mt19937_64 random_;
  FaultCounts counts_;
};

// Thread contract: as IoQueue. `plan` is fixed for the life of the queue.
class FaultyQueue final : public IoQueue {
 public:
  using Make = std::unique_ptr<IoQueue> (*)(const IoQueueOptions&);

  FaultyQueue(Make make, IoQueueOptions options, const FaultPlan& plan);
  ~FaultyQueue() override;

  FaultCounts counts() const;

  std::string name() const override { return "faulty " + inner_->name(); }
  IoFile register_file(int fd, std::string path) override {
    return inner_->register_file(fd, std::move(path));
  }
  bool register_buffers(std::span<const std::span<std::byte>> buffers) override {
    return inner_->register_buffers(buffers);
  }
  IoTicket submit(IoRequest request) override;
  void promote(IoTicket ticket) override;
  void flush(IoFile file) override { inner_->flush(file); }
  void drain() override;
  IoQueueStats stats() const override { return inner_->stats(); }

 private:
  struct Held {
    IoTicket ticket;
    IoRequest request;
  };

  void hand_on();  // the thread that reorders
  void pass(Held held);

  const bool reorder_;
  std::shared_ptr<FaultHooks> hooks_;
  std::unique_ptr<IoQueue> inner_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::mt19937_64 random_;
  std::vector<Held> held_;
  std::map<IoTicket, IoTicket> inner_ticket_;  // of transfers under way; 0 while held
  IoTicket last_ticket_ = 0;
  std::uint64_t reordered_ = 0;
  bool stopping_ = false;
  std::thread hander_;
};

}  // namespace terrace
