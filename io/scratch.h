// Scratch: extents that live for one run and are never committed (16-bit parameters, gradients, activations),
// striped over one or more paths.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/io_queue.h"

namespace terrace {

struct VolumePath {
  std::string path;              // a folder
  std::uint64_t size_bytes = 0;  // hard budget of this run on it; 0 = what is free
};

// Extents are numbered; each lies whole on one path. Nameless files: nothing is left behind by a killed run.
// The checksum of what was last written to an extent is kept in memory and checked on every read; reading an
// extent that was never written is an error of ours (internal). Thread contract: read and write may be called
// from any thread; transfers of one extent must not overlap in time.
class Scratch {
 public:
  // Allocates one extent per entry of `extent_bytes` (each rounded up to 4096) and registers the files with
  // the queue, which must outlive this. Throws does_not_fit by path with the bytes wanted.
  Scratch(IoQueue& queue, std::span<const VolumePath> paths, std::span<const std::uint64_t> extent_bytes);
  ~Scratch();  // waits for the queue to drain

  std::size_t extents() const;
  // The folder of each path, and the bytes held on it.
  const std::vector<VolumePath>& held() const;
  std::uint64_t extent_bytes(std::size_t extent) const;  // rounded

  // `data` is 4096-aligned and at most extent_bytes() long (any length: rounded up to 4096 in the transfer,
  // so the buffer must extend that far). A read asks for as many bytes as were last written. Errors arrive in
  // `done`: io_failed, or corrupt with path, offset and extent. Cost: one checksum of the data, of a write on
  // the calling thread, of a read on the queue's.
  IoTicket read(std::size_t extent, std::span<std::byte> data, IoPriority priority,
                std::function<void(std::exception_ptr)> done);
  IoTicket write(std::size_t extent, std::span<std::byte> data, IoPriority priority,
                 std::function<void(std::exception_ptr)> done);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace terrace
