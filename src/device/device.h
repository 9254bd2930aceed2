// Where compute runs: memory, and streams that run work in order.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "src/base/aligned_memory.h"

namespace terrace {

// A point in a stream. Thread contract: any thread.
class Event {
 public:
  virtual ~Event() = default;
  // Blocks until everything before the point has completed; rethrows what it threw.
  virtual void wait() = 0;
};
using EventPtr = std::shared_ptr<Event>;

// Runs what it is given in order, possibly later. Thread contract: one thread issues; any thread may wait for
// its events. After a failure nothing more runs, and every wait rethrows it.
class Stream {
 public:
  virtual ~Stream() = default;
  // dst and src must stay valid until an event recorded after the copy has completed.
  virtual void copy(void* dst, const void* src, std::size_t bytes) = 0;
  virtual void launch(std::function<void()> work) = 0;
  // What is issued from here on starts after `event`.
  virtual void wait(EventPtr event) = 0;
  virtual EventPtr record() = 0;
  virtual void synchronize() = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;
  virtual std::unique_ptr<Stream> make_stream() = 0;
  // Memory of the device, 2 MiB aligned. Throws does_not_fit.
  virtual AlignedMemory allocate(std::size_t bytes, const std::string& what) = 0;
};

// The processor as the compute device: the embedded default. `adversarial`: whatever is issued runs only once
// something waits for it, so that a missing wait shows as a wrong number; for tests.
std::unique_ptr<Device> make_host_device(bool adversarial = false);

}  // namespace terrace
