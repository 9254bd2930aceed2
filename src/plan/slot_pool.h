// A range of a tier's arena from which the compiler gives out slots, in list order.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace terrace {

// Sizes are rounded up to 4096. Pure bookkeeping; belongs to one thread.
class SlotPool {
 public:
  // A pool to measure with: never full, always the lowest place, so that peak_bytes() is what is needed at
  // least.
  SlotPool() = default;
  // A pool of [base, base + bytes). `rotate`: look for room after the last slot given out, so that a slot
  // just released is the last to be used again and its readers have time to finish.
  SlotPool(std::uint64_t base, std::uint64_t bytes, bool rotate);

  // The offset in the arena, or nothing when no gap is large enough.
  std::optional<std::uint64_t> take(std::uint64_t bytes);
  // That very place in the arena, or false when some of it is taken.
  bool take_at(std::uint64_t offset, std::uint64_t bytes);
  void give_back(std::uint64_t offset);

  std::uint64_t base() const { return base_; }
  std::uint64_t bytes() const { return bytes_; }

  std::uint64_t peak_bytes() const { return peak_; }
  // What a slot takes of its pool.
  static std::uint64_t slot_bytes(std::uint64_t bytes);

 private:
  void take_found(std::uint64_t at, std::uint64_t bytes);
  std::optional<std::uint64_t> find(std::uint64_t bytes, std::uint64_t from) const;

  std::uint64_t base_ = 0;
  std::uint64_t bytes_ = ~std::uint64_t{0} >> 2;
  bool rotate_ = false;
  std::uint64_t cursor_ = 0;
  std::uint64_t peak_ = 0;
  std::map<std::uint64_t, std::uint64_t> taken_;  // start -> end, relative to base
};

}  // namespace terrace
