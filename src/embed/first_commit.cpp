#include "src/embed/first_commit.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "src/base/fail.h"

namespace terrace {
namespace {

// How many writes are under way, and the first that failed.
class Writes {
 public:
  ~Writes() { wait_for(0); }
  void add() {
    const std::lock_guard lock(mutex_);
    ++under_way_;
  }
  void done(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
    --under_way_;
    changed_.notify_all();
  }
  void wait() {
    wait_for(0);
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void wait_for(std::size_t most) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return under_way_ <= most; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t under_way_ = 0;
  std::exception_ptr error_;
};

}  // namespace

void commit_initial_states(Engine& engine, bool commits, const std::string& run_state) {
  const std::vector<Chunk>& chunks = engine.plan().chunks;
  const std::span<std::byte> room = engine.host_memory();
  std::uint64_t largest = 0;
  for (const Chunk& chunk : chunks) largest = std::max(largest, state_slot_bytes(chunk));
  const std::size_t places = std::min<std::size_t>(room.size() / largest, 16);
  check(places > 0, "a host arena of {} bytes has no room for a state of {}", room.size(), largest);
  for (std::size_t first = 0; first < chunks.size(); first += places) {
    Writes writes;
    const std::size_t last = std::min(first + places, chunks.size());
    for (std::size_t c = first; c < last; ++c) {
      const StateLayout layout = state_layout(chunks[c]);
      const auto extent = room.subspan((c - first) * largest, state_slot_bytes(chunks[c]));
      std::memset(extent.data(), 0, extent.size());
      engine.fill_master(chunks[c], reinterpret_cast<float*>(extent.data() + layout.offset_bytes[0]));
      writes.add();
      try {
        engine.store()->write(c, extent, {0, std::vector<std::uint64_t>(chunks[c].segments.size(), 0)},
                              IoPriority::write_back,
                              [&](std::exception_ptr error) { writes.done(std::move(error)); });
      } catch (...) {
        writes.done(nullptr);  // it never started
        throw;
      }
    }
    writes.wait();
  }
  if (commits) engine.store()->commit(0, run_state);
}

}  // namespace terrace
