#include "src/plan/slot_pool.h"

#include <algorithm>

#include "src/base/fail.h"
#include "src/base/units.h"

namespace terrace {

std::uint64_t SlotPool::slot_bytes(std::uint64_t bytes) {
  return std::max<std::uint64_t>(round_up(bytes, 4096), 4096);
}

SlotPool::SlotPool(std::uint64_t base, std::uint64_t bytes, bool rotate)
    : base_(base), bytes_(bytes), rotate_(rotate) {}

// The first gap of `bytes` at or after `from`.
std::optional<std::uint64_t> SlotPool::find(std::uint64_t bytes, std::uint64_t from) const {
  std::uint64_t at = from;
  for (const auto& [start, end] : taken_) {
    if (end <= at) continue;
    if (start >= at && start - at >= bytes) break;
    at = std::max(at, end);
  }
  if (at > bytes_ || bytes_ - at < bytes) return std::nullopt;
  return at;
}

std::optional<std::uint64_t> SlotPool::take(std::uint64_t bytes) {
  bytes = slot_bytes(bytes);
  auto at = find(bytes, rotate_ ? cursor_ : 0);
  if (!at && rotate_) at = find(bytes, 0);
  if (!at) return std::nullopt;
  take_found(*at, bytes);
  return base_ + *at;
}

bool SlotPool::take_at(std::uint64_t offset, std::uint64_t bytes) {
  const std::uint64_t at = offset - base_;
  bytes = slot_bytes(bytes);
  if (find(bytes, at) != at) return false;
  take_found(at, bytes);
  return true;
}

void SlotPool::take_found(std::uint64_t at, std::uint64_t bytes) {
  taken_.emplace(at, at + bytes);
  cursor_ = at + bytes;
  peak_ = std::max(peak_, at + bytes);
}

void SlotPool::give_back(std::uint64_t offset) {
  check(taken_.erase(offset - base_) == 1, "slot at {} was not taken", offset);
}

}  // namespace terrace
