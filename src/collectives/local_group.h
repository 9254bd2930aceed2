// Where the ranks of one process meet: the state behind LocalCommunicator.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/collectives/collective_call.h"
#include "src/collectives/communicator.h"
#include "terrace/error.h"

namespace terrace {

class LocalGroup;

// What all groups of one world share. The mutex guards it and the state of every group: collectives are few,
// and what a failure looks at and stops is all of it. Functions take the lock as proof.
class LocalWorld {
 public:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;

  LocalWorld(int size, const CommunicatorOptions& options);

  const CommunicatorOptions& options() const { return options_; }
  Lock lock() { return Lock(mutex_); }

  bool failed(const Lock&) const { return failure_.has_value(); }
  // The first failure stays; wakes everybody.
  void fail_all(const Lock& lock, ErrorCode code, std::string cause);
  // Throws the failure, with what the caller met it in.
  [[noreturn]] void throw_failure(const Lock&, const std::string& met_in) const;

  void add(const Lock& lock, const std::shared_ptr<LocalGroup>& group);
  // "; rank 3 is in barrier (step 7) of group shards": where a rank waits, for messages; empty when nowhere.
  std::string whereabouts(const Lock& lock, int world_rank) const;
  // When a transfer of `bytes` that may start at `from` has left over the rank's emulated link (there is
  // one).
  Clock::time_point reserve_link(const Lock&, int world_rank, Clock::time_point from, std::uint64_t bytes);

 private:
  struct Failure {
    ErrorCode code;
    std::string cause;
  };

  const CommunicatorOptions options_;
  std::mutex mutex_;
  std::optional<Failure> failure_;
  std::vector<std::weak_ptr<LocalGroup>> groups_;
  std::vector<Clock::time_point> link_free_;  // by rank
};

// A group's rendezvous. A collective of it is a cycle: every rank enters with its call; with the last one the
// cycle opens and each rank reads what it receives out of the others' memory; each leaves once all have read.
// A cycle that has opened ends on every rank, whatever happens meanwhile: nobody's memory goes while it is
// read. Waiting ranks sleep. Thread contract: any thread, one for each rank at a time.
class LocalGroup {
 public:
  LocalGroup(std::shared_ptr<LocalWorld> world, std::vector<int> world_ranks, std::string name);

  int size() const { return static_cast<int>(world_ranks_.size()); }
  const std::vector<int>& world_ranks() const { return world_ranks_; }
  const std::string& name() const { return name_; }

  // Returns when all ranks have entered. `call` lives until leave() returns (barriers: until this returns;
  // they have no leave()). Throws as Communicator says; the rank has not entered then.
  void enter(int rank, const CollectiveCall& call);
  // Between enter and leave: the call of any rank, and the group that a split has made for this one.
  const CollectiveCall& call_of(int rank) const { return *calls_[index(rank)]; }
  std::shared_ptr<LocalGroup> take_made(int rank) { return std::move(made_[index(rank)]); }
  // Returns when all ranks have left, and the emulated link has carried `bytes`.
  void leave(int rank, std::uint64_t bytes);

  void abort(int rank, std::string_view cause) noexcept;
  // The rank's handle is destroyed.
  void quit(int rank) noexcept;

 private:
  friend class LocalWorld;
  using Lock = LocalWorld::Lock;

  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  void stop_if_failed(const Lock& lock, int rank, const CollectiveCall& call) const;
  void stop_if_unmatched(const Lock& lock, int rank, const CollectiveCall& call);
  void stop_if_someone_left(const Lock& lock, int rank, const CollectiveCall& call);
  void wait_for_others(Lock& lock, int rank, const CollectiveCall& call);
  void fail_missing(const Lock& lock, int rank, const CollectiveCall& call,
                    LocalWorld::Clock::duration waited);
  void open(const Lock& lock);
  std::string make_groups(const Lock& lock);
  std::string missing_ranks(const Lock&) const;
  std::string place(const Lock&, const CollectiveCall& call) const;

  const std::shared_ptr<LocalWorld> world_;
  const std::vector<int> world_ranks_;
  const std::string name_;
  // Guarded by the world's mutex, except that an open cycle's calls_ and made_ do not change.
  std::condition_variable changed_;
  std::vector<const CollectiveCall*> calls_;  // of the ranks that are in the cycle; null: not there
  std::vector<bool> gone_;                    // handles destroyed
  std::vector<std::shared_ptr<LocalGroup>> made_;
  int entered_ = 0;
  int left_ = 0;
  std::uint64_t opened_ = 0;  // cycles so far
  std::uint64_t closed_ = 0;
  LocalWorld::Clock::time_point opened_at_;
};

}  // namespace terrace
