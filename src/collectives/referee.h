// Decides for a world whose ranks are processes: when a collective may begin, and when the world has ended.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/collectives/control_message.h"

namespace terrace {

// One place decides, so that a collective begins on every rank or on none, and every rank reads one first
// cause. It sees messages only, in the order in which each rank sent them, and answers through `send`. The
// rules and words are LocalGroup's. Thread contract: one thread. Cost of a collective: one message from and
// one to each rank of the group; its calls are compared as they come, in the time of their parts.
class Referee {
 public:
  using Clock = std::chrono::steady_clock;
  using Send = std::function<void(int world_rank, ControlMessage message)>;

  // Of the world numbered `world`, of ranks 0 to size - 1.
  Referee(std::uint32_t world, int size, Send send);

  // A hello, enter, leave, abort or close.
  void receive(const ControlMessage& message, Clock::time_point now);
  // Ends the world when a rank has waited longer than the limit.
  void look_at_clock(Clock::time_point now);
  // Every rank has closed: nothing can come any more.
  bool finished() const { return closed_ == size_; }

 private:
  struct Group {
    std::uint32_t number = 0;
    std::string name{};
    std::vector<int> world_ranks{};
    std::vector<std::shared_ptr<const CallRecord>> calls{};  // of the ranks that wait; null: not there
    std::vector<bool> gone{};                                // handles destroyed
    int entered = 0;
    std::uint64_t opened = 0;
    int first = 0;  // the rank that waits longest, and since when
    Clock::time_point since{};

    int size() const { return static_cast<int>(world_ranks.size()); }
    int rank_of(int world_rank) const;
  };

  void greet(const ControlMessage& message);
  void take_call(Group& group, const ControlMessage& message, Clock::time_point now);
  void take_leave(Group& group, int world_rank);
  void open(Group& group, const CollectiveCall& last);
  std::string wrong_groups(const Group& group) const;
  std::uint32_t add_group(std::vector<int> world_ranks, std::string name);
  void fail_all(ErrorCode code, std::string cause);
  std::string missing_ranks(const Group& group) const;
  std::string place(const Group& group, const CollectiveCall& call) const;
  std::string whereabouts(int world_rank) const;

  const std::uint32_t world_;
  const int size_;
  const Send send_;
  std::optional<CommunicatorOptions> options_;  // of the first rank that came
  int first_rank_ = 0;
  std::map<std::uint32_t, Group> groups_;
  std::uint32_t next_group_ = 0;
  bool failed_ = false;
  int closed_ = 0;
};

}  // namespace terrace
