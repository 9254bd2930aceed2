#include "src/collectives/mpi_engine.h"

#include <mpi.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <utility>

#include "src/base/fail.h"
#include "src/collectives/mpi_communicator.h"
#include "src/collectives/mpi_wire.h"

namespace terrace {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// MPI counts in int; and the fewer bytes a piece has, the sooner a transfer that stands is noticed.
constexpr std::uint64_t kPieceBytes = std::uint64_t{16} << 20;
constexpr microseconds kShortestPause{10}, kLongestPause{1000};

std::atomic<MpiEngine*> the_engine{nullptr};

// Ends the job when a blocking call of MPI takes longer than `limit`.
class BlockingCall {
 public:
  BlockingCall(std::string what, milliseconds limit)
      : thread_([this, what = std::move(what), limit] {
          std::unique_lock lock(mutex_);
          if (over_.wait_for(lock, limit, [this] { return ended_; })) return;
          std::fprintf(stderr,
                       "terrace: %s has not ended within %.2f s: a process of the job has not come to it\n",
                       what.c_str(), std::chrono::duration<double>(limit).count());
          std::_Exit(1);  // MPI does not work yet, or no more; the launcher ends the others
        }) {}
  ~BlockingCall() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    over_.notify_all();
    thread_.join();
  }
  BlockingCall(const BlockingCall&) = delete;
  BlockingCall& operator=(const BlockingCall&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable over_;
  bool ended_ = false;
  std::thread thread_;
};

// MPI_Finalize deletes the attributes of MPI_COMM_SELF first: where the program finalises, we stop here.
int stop_at_finalize(MPI_Comm, int, void*, void*) {
  if (MpiEngine* const engine = MpiEngine::running()) engine->stop();
  return MPI_SUCCESS;
}

}  // namespace

void MpiBatch::cut(Piece piece, std::uint64_t bytes) {
  for (std::uint64_t begin = 0; begin < bytes; begin += kPieceBytes) {
    piece.bytes = static_cast<int>(std::min(kPieceBytes, bytes - begin));
    pieces_.push_back(piece);
    piece.data += piece.bytes;
  }
}

void MpiBatch::send(int process, int tag, const std::byte* data, std::uint64_t bytes) {
  cut({.sends = true, .process = process, .tag = tag, .data = const_cast<std::byte*>(data), .bytes = 0},
      bytes);
}

void MpiBatch::receive(int process, int tag, std::byte* data, std::uint64_t bytes) {
  cut({.sends = false, .process = process, .tag = tag, .data = data, .bytes = 0}, bytes);
}

MpiEngine& MpiEngine::start(milliseconds limit) {
  static std::mutex mutex;
  static MpiEngine* engine = nullptr;
  const std::lock_guard lock(mutex);
  if (engine == nullptr) {
    auto made = std::unique_ptr<MpiEngine>(new MpiEngine);
    made->initialise(limit);
    engine = made.release();
    the_engine = engine;
  }
  if (the_engine == nullptr) fail(ErrorCode::unsupported, "MPI was finalised: no world can be made any more");
  return *engine;
}

MpiEngine* MpiEngine::running() {
  return the_engine;
}

void MpiEngine::initialise(milliseconds limit) {
  int has_begun = 0, provided = MPI_THREAD_SINGLE;
  MPI_Initialized(&has_begun);
  const BlockingCall watch("the start of MPI", limit + kMpiGrace);
  if (has_begun != 0) {
    MPI_Query_thread(&provided);
  } else {
    // Our thread sleeps between its looks. Open MPI can yield in each of them too (mpirun may ask for it
    // where there are more processes than cores), and where the cores are busy every yield costs a time
    // slice.
    ::setenv("OMPI_MCA_mpi_yield_when_idle", "0", 1);
    // All our calls come from one thread; the program may make its own beside them.
    const int status = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
    if (status != MPI_SUCCESS) fail(ErrorCode::unsupported, "MPI_Init_thread failed with {}", status);
    finalises_ = true;
  }
  const int wanted = has_begun != 0 ? MPI_THREAD_MULTIPLE : MPI_THREAD_SERIALIZED;
  if (provided < wanted) {
    fail(ErrorCode::unsupported,
         "MPI gives thread level {} (wanted {}): it must be usable from more than one thread", provided,
         wanted);
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &process_);
  MPI_Comm_size(MPI_COMM_WORLD, &processes_);
  int found = 0, key = MPI_KEYVAL_INVALID;
  int* largest = nullptr;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&largest), &found);
  largest_tag_ = found != 0 ? *largest : 32767;
  check_mpi(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, stop_at_finalize, &key, nullptr),
            "MPI_Comm_create_keyval");
  check_mpi(MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr), "MPI_Comm_set_attr");
  wire_ = std::make_unique<MpiWire>(*this);
  thread_ = std::thread([this] { serve(); });
  if (finalises_)
    std::atexit([] {
      if (MpiEngine* const engine = running()) engine->finish();
    });
}

int MpiEngine::tag(std::uint32_t world, std::uint32_t group) const {
  const std::uint64_t number = std::uint64_t{world} * 4099 + group;
  return static_cast<int>(number % static_cast<std::uint64_t>(largest_tag_));
}

std::uint32_t MpiEngine::open_world(const Lock&, MpiListener& listener, milliseconds limit) {
  worlds_[++last_world_] = &listener;
  last_world_failed_ = false;
  limit_ = limit;
  return last_world_;
}

std::optional<ControlMessage> MpiEngine::take_early_failure(const Lock&, std::uint32_t world) {
  const auto node = early_failures_.extract(world);
  if (node.empty()) return std::nullopt;
  return node.mapped();
}

void MpiEngine::close_world(const Lock& lock, std::uint32_t world, bool failed) {
  if (failed) note_failure(lock, world);
  worlds_.erase(world);
}

void MpiEngine::note_failure(const Lock&, std::uint32_t world) {
  if (world == last_world_) last_world_failed_ = true;
}

void MpiEngine::post(const Lock&, std::vector<std::byte> message) {
  posted_messages_.push_back(std::move(message));
  posted_cv_.notify_one();
}

void MpiEngine::start(MpiBatch& batch) {
  if (batch.empty()) return;
  const Lock held = lock();
  batch.left_ = batch.pieces_.size();
  batch.moved_ = Clock::now();
  posted_batches_.push_back(&batch);
  posted_cv_.notify_one();
}

bool MpiEngine::wait(MpiBatch& batch, milliseconds limit) {
  Lock held = lock();
  while (batch.left_ > 0) {
    const Clock::time_point until = batch.moved_ + limit;
    if (Clock::now() >= until) return false;
    wait_until(held, until, [&] { return batch.left_ == 0; });
  }
  batch.pieces_.clear();
  return true;
}

void MpiEngine::deliver(const ControlMessage& message) {
  const Lock held = lock();
  if (message.kind == ControlMessage::Kind::all_bye) all_bye_ = true;
  const auto world = worlds_.find(message.world);
  if (world != worlds_.end()) world->second->receive(held, message);
  if (message.world > last_world_) early_failures_[message.world] = message;  // nothing else comes so early
  changed_.notify_all();
}

void MpiEngine::serve() {
  ::prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);  // a pause of 10 us takes 60 us otherwise
  microseconds pause = kShortestPause;
  bool told_to_stop = false;
  try {
    while (true) {
      const bool moved = wire_->progress();
      Lock held = lock();
      const auto posted = [&] { return !posted_messages_.empty() || !posted_batches_.empty(); };
      if (stopping_ && !posted() && (wire_->idle() || Clock::now() >= stop_by_)) break;
      pause = moved || posted() ? kShortestPause : std::min(2 * pause, kLongestPause);
      if (moved) continue;
      const auto wanted = [&] { return posted() || stopping_ != told_to_stop; };
      if (wire_->idle() && waiting_ == 0 && !wire_->serves_referee() && !stopping_) {
        posted_cv_.wait(held, [&] { return wanted() || waiting_ > 0; });
      } else {
        posted_cv_.wait_for(held, pause, wanted);
      }
      told_to_stop = stopping_;
    }
  } catch (const std::exception& error) {
    abort_mpi_job(error.what());
  }
  const Lock held = lock();
  stopped_ = true;
  changed_.notify_all();
}

void MpiEngine::stop() {
  {
    Lock held = lock();
    if (stopping_) return;
    stopping_ = true;
    stop_by_ = Clock::now() + std::chrono::seconds(1);
    posted_cv_.notify_one();
    // Inside of a call of MPI that does not return the thread is left behind.
    if (!changed_.wait_for(held, std::chrono::seconds(2), [this] { return stopped_; })) {
      thread_.detach();
      return;
    }
  }
  thread_.join();
  the_engine = nullptr;
}

void MpiEngine::finish() {
  Lock held = lock();
  const bool failed = last_world_failed_;
  if (!failed) {
    const milliseconds limit = limit_ + kMpiGrace;
    post(held, encode({.kind = ControlMessage::Kind::bye, .rank = process_}));
    if (!wait_until(held, Clock::now() + limit, [this] { return all_bye_; })) {
      held.unlock();
      abort_mpi_job(fmt::format("not every process of the job came to its end: waited {:.2f} s",
                                std::chrono::duration<double>(limit).count()));
    }
  }
  held.unlock();
  stop();
  if (failed) return;
  const BlockingCall watch("the end of MPI", limit_ + kMpiGrace);
  wire_->free();
  MPI_Finalize();
}

void abort_mpi_job(std::string_view cause) noexcept {
  MpiEngine* const engine = MpiEngine::running();
  int has_begun = 0, has_ended = 0;
  MPI_Initialized(&has_begun);
  MPI_Finalized(&has_ended);
  if (engine != nullptr) {
    std::fprintf(stderr, "terrace: rank %d: %.*s\n", engine->process(), static_cast<int>(cause.size()),
                 cause.data());
  } else {
    std::fprintf(stderr, "terrace: %.*s\n", static_cast<int>(cause.size()), cause.data());
  }
  std::fflush(stderr);
  if (engine != nullptr && !engine->is_this_thread()) engine->stop();
  if (has_begun != 0 && has_ended == 0) MPI_Abort(MPI_COMM_WORLD, 1);
  std::_Exit(1);
}

}  // namespace terrace
