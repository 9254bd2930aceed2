#include "src/plan/emitter.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "src/base/fail.h"

namespace terrace {

Emitter::Emitter(const std::vector<Slot>& residents, bool derive_waits) : derive_waits_(derive_waits) {
  program_.slots = residents;
  lane_last_.fill(kNone);
}

SlotId Emitter::add_slot(const Slot& slot) {
  program_.slots.push_back(slot);
  return static_cast<SlotId>(program_.slots.size() - 1);
}

// Makes `at` a border of the map's ranges.
void Emitter::split(RangeMap& map, std::uint64_t at) {
  auto next = map.upper_bound(at);
  if (next == map.begin()) return;
  auto& [start, range] = *std::prev(next);
  if (start == at || range.end <= at) return;
  Range upper = range;
  range.end = at;
  map.emplace(at, std::move(upper));
}

void Emitter::touch(const Access& access, OpId op, std::vector<OpId>& hazards) {
  if (access.bytes == 0) return;
  const Slot& slot = program_.slots[access.slot];
  check(access.offset_bytes + access.bytes <= slot.bytes, "access of {} bytes at {} in a slot of {}",
        access.bytes, access.offset_bytes, slot.bytes);
  RangeMap& map = ranges_[static_cast<std::size_t>(slot.tier)];
  const std::uint64_t begin = slot.offset_bytes + access.offset_bytes;
  const std::uint64_t end = begin + access.bytes;
  split(map, begin);
  split(map, end);
  if (access.mode == AccessMode::read) {
    std::uint64_t at = begin;
    for (auto it = map.lower_bound(begin); at < end;) {
      if (it == map.end() || it->first > at) {  // never touched: remember the reader
        const std::uint64_t gap_end = it == map.end() ? end : std::min(end, it->first);
        it = std::next(map.emplace(at, Range{gap_end, kNone, {op}}).first);
        at = gap_end;
      } else {
        if (it->second.writer != kNone) hazards.push_back(it->second.writer);
        it->second.readers.push_back(op);
        at = it->second.end;
        ++it;
      }
    }
    return;
  }
  auto first = map.lower_bound(begin);
  auto last = first;
  for (; last != map.end() && last->first < end; ++last) {
    if (last->second.writer != kNone) hazards.push_back(last->second.writer);
    hazards.insert(hazards.end(), last->second.readers.begin(), last->second.readers.end());
  }
  map.erase(first, last);
  map.emplace(begin, Range{end, op, {}});
}

bool Emitter::known_complete(const Clock& started, OpId op) const {
  const Clock& completed = completed_[op];
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    if (completed[lane] <= started[lane]) return true;
  }
  return false;
}

// The operation at `position` of `lane` starts after `earlier` has started, or completed.
void Emitter::follow(Clock& started, OpId earlier, bool completed, std::size_t lane, std::uint32_t position) {
  for (std::size_t i = 0; i < kLanes; ++i) started[i] = std::max(started[i], started_[earlier][i]);
  if (completed) completed_[earlier][lane] = std::min(completed_[earlier][lane], position);
}

OpId Emitter::emit(Op op) {
  const auto id = static_cast<OpId>(program_.ops.size());
  if (!derive_waits_) {
    program_.ops.push_back(std::move(op));
    return id;
  }
  std::vector<OpId> hazards = std::move(op.waits);
  for (const Access& access : op.accesses) touch(access, id, hazards);
  std::sort(hazards.begin(), hazards.end(), std::greater<>());
  hazards.erase(std::unique(hazards.begin(), hazards.end()), hazards.end());

  const auto lane = static_cast<std::size_t>(op.lane);
  const std::uint32_t position = ++lane_length_[lane];
  Clock started{};
  if (const OpId previous = lane_last_[lane]; previous != kNone)
    follow(started, previous, completes_in_order(op.lane), lane, position);
  started[lane] = position;
  op.waits.clear();
  for (const OpId hazard : hazards) {  // latest first: a later one often implies the earlier
    if (hazard == id || known_complete(started, hazard)) continue;
    op.waits.push_back(hazard);
    follow(started, hazard, true, lane, position);
  }
  lane_last_[lane] = id;
  started_.push_back(started);
  completed_.emplace_back().fill(kNone);
  program_.ops.push_back(std::move(op));
  return id;
}

}  // namespace terrace
