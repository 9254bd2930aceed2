// Which transfer gives the next piece: the policy of every queue, apart from how pieces are moved.
#pragma once

#include <array>
#include <cstdint>
#include <set>

#include "io/io_queue.h"

namespace terrace {

// Classes of IoPriority in order, within a class by ticket, with two exceptions that keep both directions of
// the disk busy and everything moving:
// - while prefetches run, write backs keep half of the depth; while demanded transfers run, a quarter;
// - a class passed over kPatience times gives the next piece.
// Thread contract: the caller locks. Cost: O(log waiting) a call.
class TransferOrder {
 public:
  static constexpr std::uint32_t kPatience = 32;

  explicit TransferOrder(std::uint32_t depth) : depth_(depth) {}

  void add(IoTicket ticket, IoPriority priority);
  void remove(IoTicket ticket);   // no effect when it does not wait
  void promote(IoTicket ticket);  // to IoPriority::demand; likewise

  bool empty() const;
  IoTicket first() const;  // any waiting transfer, the lowest class first; 0 when empty

  // The transfer that gives the next piece, 0 when none waits. `priority` says under which class it runs:
  // hand it back to ended() when the piece has ended.
  IoTicket start(IoPriority& priority);
  void ended(IoPriority priority) { --in_flight_[static_cast<int>(priority)]; }

 private:
  int choose();

  std::uint32_t depth_;
  std::array<std::set<IoTicket>, kIoPriorities> waiting_;
  std::array<std::uint32_t, kIoPriorities> in_flight_{};
  std::array<std::uint32_t, kIoPriorities> passed_{};
};

}  // namespace terrace
