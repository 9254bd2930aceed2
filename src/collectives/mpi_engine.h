// The thread of a process that talks to MPI: carries transfers and control messages, and is the referee's.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "src/collectives/control_message.h"

namespace terrace {

class MpiWire;

// The transfers of one collective, or of one tile of it: filled, started, waited for. Pieces between two
// ranks arrive in the order in which both have added them. The memory stays until the wait is over.
class MpiBatch {
 public:
  void send(int process, int tag, const std::byte* data, std::uint64_t bytes);
  void receive(int process, int tag, std::byte* data, std::uint64_t bytes);
  bool empty() const { return pieces_.empty(); }

 private:
  friend class MpiEngine;
  friend class MpiWire;
  struct Piece {
    bool sends;
    int process;
    int tag;
    std::byte* data;
    int bytes;
  };
  void cut(Piece piece, std::uint64_t bytes);

  std::vector<Piece> pieces_;
  // Guarded by the engine's mutex.
  std::size_t left_ = 0;
  std::chrono::steady_clock::time_point moved_{};
};

// Who receives a world's control messages.
class MpiListener {
 public:
  virtual ~MpiListener() = default;
  virtual void receive(const std::unique_lock<std::mutex>& lock, const ControlMessage& message) = 0;
};

// One a process, never destroyed: MPI can be initialised only once. Thread contract: any thread.
// Everything that goes wrong in MPI itself ends the job.
class MpiEngine {
 public:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;

  // Initialises MPI when first called; whoever does not come within `limit` ends the job.
  static MpiEngine& start(std::chrono::milliseconds limit);
  static MpiEngine* running();  // null before start() and after MPI was finalised

  int process() const { return process_; }
  int processes() const { return processes_; }
  int tag(std::uint32_t world, std::uint32_t group) const;
  Lock lock() { return Lock(mutex_); }
  bool is_this_thread() const { return thread_.get_id() == std::this_thread::get_id(); }

  // The world's number is the same on every process. One that has not failed when its process exits lets it
  // finalise MPI.
  std::uint32_t open_world(const Lock&, MpiListener& listener, std::chrono::milliseconds limit);
  // How a world has ended that another process made and ended before this one made it.
  std::optional<ControlMessage> take_early_failure(const Lock&, std::uint32_t world);
  void close_world(const Lock&, std::uint32_t world, bool failed);
  void note_failure(const Lock&, std::uint32_t world);

  // To the referee (encoded).
  void post(const Lock&, std::vector<std::byte> message);
  // Sleeps until `done` or `until`, while messages arrive. Returns done().
  template <typename Done>
  bool wait_until(Lock& lock, Clock::time_point until, const Done& done) {
    ++waiting_;
    posted_cv_.notify_one();
    const bool is_done = changed_.wait_until(lock, until, done);
    --waiting_;
    return is_done;
  }

  void start(MpiBatch& batch);
  // False when nothing of it has moved for `limit`: it is still going on then.
  bool wait(MpiBatch& batch, std::chrono::milliseconds limit);

  // Lets what was posted leave (within a second) and stops the thread, so that another may call MPI.
  void stop();

 private:
  friend class MpiWire;
  MpiEngine() = default;
  void initialise(std::chrono::milliseconds limit);
  void serve();
  void deliver(const ControlMessage& message);
  void finish();

  int process_ = 0;
  int processes_ = 1;
  int largest_tag_ = 0;
  bool finalises_ = false;  // MPI is ours
  std::unique_ptr<MpiWire> wire_;
  std::thread thread_;

  std::mutex mutex_;
  std::condition_variable posted_cv_, changed_;
  // Guarded by mutex_.
  std::vector<std::vector<std::byte>> posted_messages_;
  std::vector<MpiBatch*> posted_batches_;
  std::map<std::uint32_t, MpiListener*> worlds_;
  std::map<std::uint32_t, ControlMessage> early_failures_;  // of worlds that are not made here yet
  std::uint32_t last_world_ = 0;
  bool last_world_failed_ = false;
  std::chrono::milliseconds limit_{};
  int waiting_ = 0;
  bool all_bye_ = false;
  bool stopping_ = false, stopped_ = false;
  Clock::time_point stop_by_{};
};

}  // namespace terrace
