#include "src/device/host_device.h"

#include <cstring>
#include <utility>

namespace terrace {
namespace {

class DoneEvent : public Event {
 public:
  void wait() override {}
};

// A stream handle that shares ownership with the events recorded on it.
class LazyHandle : public Stream {
 public:
  ~LazyHandle() override { stream_->abandon(); }
  void copy(void* dst, const void* src, std::size_t bytes) override { stream_->copy(dst, src, bytes); }
  void launch(std::function<void()> work) override { stream_->launch(std::move(work)); }
  void wait(EventPtr event) override { stream_->wait(std::move(event)); }
  EventPtr record() override { return stream_->record(); }
  void synchronize() override { stream_->synchronize(); }

 private:
  std::shared_ptr<LazyStream> stream_ = std::make_shared<LazyStream>();
};

class HostDevice : public Device {
 public:
  explicit HostDevice(bool adversarial) : adversarial_(adversarial) {}

  std::string name() const override { return adversarial_ ? "host (adversarial)" : "host"; }
  std::unique_ptr<Stream> make_stream() override {
    if (adversarial_) return std::make_unique<LazyHandle>();
    return std::make_unique<InlineStream>();
  }
  AlignedMemory allocate(std::size_t bytes, const std::string& what) override {
    return AlignedMemory(bytes, what);
  }

 private:
  bool adversarial_;
};

}  // namespace

void InlineStream::copy(void* dst, const void* src, std::size_t bytes) {
  std::memcpy(dst, src, bytes);
}

void InlineStream::launch(std::function<void()> work) {
  work();
}

void InlineStream::wait(EventPtr event) {
  event->wait();
}

EventPtr InlineStream::record() {
  static const EventPtr done = std::make_shared<DoneEvent>();
  return done;
}

class LazyStream::LazyEvent : public Event {
 public:
  LazyEvent(std::shared_ptr<LazyStream> stream, std::uint64_t count)
      : stream_(std::move(stream)), count_(count) {}
  void wait() override { stream_->run_until(count_); }

 private:
  std::shared_ptr<LazyStream> stream_;
  std::uint64_t count_;
};

void LazyStream::copy(void* dst, const void* src, std::size_t bytes) {
  launch([=] { std::memcpy(dst, src, bytes); });
}

void LazyStream::launch(std::function<void()> work) {
  const std::lock_guard lock(queue_);
  work_.push_back(std::move(work));
  ++issued_;
}

void LazyStream::wait(EventPtr event) {
  launch([event = std::move(event)] { event->wait(); });
}

EventPtr LazyStream::record() {
  const std::lock_guard lock(queue_);
  return std::make_shared<LazyEvent>(shared_from_this(), issued_);
}

void LazyStream::synchronize() {
  std::uint64_t issued = 0;
  {
    const std::lock_guard lock(queue_);
    issued = issued_;
  }
  run_until(issued);
}

void LazyStream::abandon() {
  std::deque<std::function<void()>> dropped;
  {
    const std::lock_guard lock(queue_);
    dropped.swap(work_);
  }
  // What it holds (other streams' events) goes here, without the lock.
}

void LazyStream::run_until(std::uint64_t count) {
  if (done_.load(std::memory_order_acquire) >= count) return;
  const std::lock_guard running(running_);
  if (failure_) std::rethrow_exception(failure_);
  while (done_.load(std::memory_order_relaxed) < count) {
    std::function<void()> work;
    {
      const std::lock_guard lock(queue_);
      work = std::move(work_.front());
      work_.pop_front();
    }
    try {
      work();
    } catch (...) {
      failure_ = std::current_exception();
      throw;
    }
    done_.fetch_add(1, std::memory_order_release);
  }
}

std::unique_ptr<Device> make_host_device(bool adversarial) {
  return std::make_unique<HostDevice>(adversarial);
}

}  // namespace terrace
