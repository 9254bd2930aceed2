#include "tests/support/faulty_queue.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace terrace {

FaultCounts FaultHooks::counts() const {
  const std::lock_guard guard(mutex_);
  return counts_;
}

bool FaultHooks::chance(double p) {
  return p > 0 && std::uniform_real_distribution<double>(0, 1)(random_) < p;
}

std::uint64_t FaultHooks::ask_bytes(const IoCall& call) {
  const std::lock_guard guard(mutex_);
  const std::uint64_t units = call.data.size() / call.unit_bytes;
  if (!strikes(call.path) || units < 2 || !chance(plan_.short_transfers)) return call.data.size();
  ++counts_.shortened;
  return call.unit_bytes * (1 + random_() % (units - 1));
}

std::int64_t FaultHooks::see_result(const IoCall& call, std::int64_t result) {
  std::uint32_t delay_us = 0;
  {
    const std::lock_guard guard(mutex_);
    if (!strikes(call.path)) return result;
    if (chance(plan_.delays)) {
      ++counts_.delayed;
      delay_us = 1 + static_cast<std::uint32_t>(random_() % plan_.max_delay_us);
    }
    result = fault(call, result);
  }
  if (delay_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
  return result;
}

int FaultHooks::see_flush(const std::string& path, int result) {
  const std::lock_guard guard(mutex_);
  if (!strikes(path) || ++counts_.flushes != plan_.fail_flush_at) return result;
  ++counts_.failed;
  return -plan_.error;
}

std::int64_t FaultHooks::fault(const IoCall& call, std::int64_t result) {
  const bool reading = call.direction == IoDirection::read;
  const std::uint64_t count = ++(reading ? counts_.reads : counts_.writes);
  if (count == (reading ? plan_.fail_read_at : plan_.fail_write_at)) {
    ++counts_.failed;
    return -plan_.error;
  }
  if (reading && count == plan_.flip_read_at && result > 0) {
    ++counts_.flipped;
    call.data[random_() % static_cast<std::uint64_t>(result)] ^= std::byte{1} << (random_() % 8);
  }
  if (!reading && result > 1 && chance(plan_.ragged_writes)) {
    ++counts_.ragged;
    return static_cast<std::int64_t>(1 + random_() % static_cast<std::uint64_t>(result - 1));
  }
  if (chance(plan_.interrupts)) {
    ++counts_.interrupted;
    return -EINTR;
  }
  if (chance(plan_.again)) {
    ++counts_.again;
    return -EAGAIN;
  }
  return result;
}

FaultyQueue::FaultyQueue(Make make, IoQueueOptions options, const FaultPlan& plan)
    : reorder_(plan.reorder), hooks_(std::make_shared<FaultHooks>(plan)), random_(plan.seed) {
  options.hooks = hooks_;
  inner_ = make(options);
  if (reorder_) hander_ = std::thread([this] { hand_on(); });
}

FaultyQueue::~FaultyQueue() {
  if (reorder_) {
    {
      const std::lock_guard guard(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    hander_.join();  // hands on what it holds
  }
  inner_.reset();
}

FaultCounts FaultyQueue::counts() const {
  FaultCounts counts = hooks_->counts();
  const std::lock_guard guard(mutex_);
  counts.reordered = reordered_;
  return counts;
}

IoTicket FaultyQueue::submit(IoRequest request) {
  if (!reorder_) return inner_->submit(std::move(request));
  const std::lock_guard guard(mutex_);
  const IoTicket ticket = ++last_ticket_;
  inner_ticket_[ticket] = 0;
  request.done = [this, ticket, done = std::move(request.done)](std::exception_ptr error) {
    if (done) done(std::move(error));
    const std::lock_guard inside(mutex_);
    inner_ticket_.erase(ticket);
    changed_.notify_all();
  };
  held_.push_back({ticket, std::move(request)});
  changed_.notify_all();
  return ticket;
}

void FaultyQueue::promote(IoTicket ticket) {
  if (!reorder_) return inner_->promote(ticket);
  const std::lock_guard guard(mutex_);
  const auto found = inner_ticket_.find(ticket);
  if (found == inner_ticket_.end()) return;
  if (found->second != 0) inner_->promote(found->second);
  for (Held& held : held_) {
    if (held.ticket == ticket) held.request.priority = IoPriority::demand;
  }
}

void FaultyQueue::drain() {
  if (!reorder_) return inner_->drain();
  std::unique_lock guard(mutex_);
  const IoTicket last = last_ticket_;
  changed_.wait(guard, [&] { return inner_ticket_.empty() || inner_ticket_.begin()->first > last; });
}

void FaultyQueue::pass(Held held) {
  const IoTicket inner = inner_->submit(std::move(held.request));
  const std::lock_guard guard(mutex_);
  const auto found = inner_ticket_.find(held.ticket);
  if (found != inner_ticket_.end()) found->second = inner;
}

void FaultyQueue::hand_on() {
  std::unique_lock guard(mutex_);
  while (true) {
    changed_.wait(guard, [&] { return stopping_ || !held_.empty(); });
    if (held_.empty()) return;
    changed_.wait_for(guard, std::chrono::microseconds(random_() % 300), [&] { return stopping_; });
    const std::size_t chosen = random_() % held_.size();
    if (chosen != 0) ++reordered_;
    Held held = std::move(held_[chosen]);
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(chosen));
    guard.unlock();
    pass(std::move(held));
    guard.lock();
  }
}

}  // namespace terrace
