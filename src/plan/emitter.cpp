#include "src/plan/emitter.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "src/base/fail.h"

namespace terrace {

bool Emitter::Before::has_unordered(std::uint32_t position) const {
  return position / 64 < unordered.size() && ((unordered[position / 64] >> (position % 64)) & 1) != 0;
}

void Emitter::Before::add_unordered(std::uint32_t position) {
  if (unordered.size() <= position / 64) unordered.resize(position / 64 + 1);
  unordered[position / 64] |= std::uint64_t{1} << (position % 64);
}

void Emitter::Before::merge(const Before& other) {
  for (int lane = 0; lane < kLanes; ++lane) prefix[lane] = std::max(prefix[lane], other.prefix[lane]);
  if (unordered.size() < other.unordered.size()) unordered.resize(other.unordered.size());
  for (std::size_t i = 0; i < other.unordered.size(); ++i) unordered[i] |= other.unordered[i];
}

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

bool Emitter::known_complete(const Before& before, OpId op) const {
  const Lane lane = program_.ops[op].lane;
  if (completes_in_order(lane)) return position_[op] < before.prefix[static_cast<std::size_t>(lane)];
  return before.has_unordered(position_[op]);
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
  Before before;
  if (const OpId previous = lane_last_[lane]; previous != kNone) {
    before = before_[previous];  // it has started, so all that it waited for is complete
    if (completes_in_order(op.lane)) before.prefix[lane] = position_[previous] + 1;
  }
  op.waits.clear();
  for (const OpId hazard : hazards) {  // latest first: a later one often implies the earlier
    if (hazard == id || known_complete(before, hazard)) continue;
    op.waits.push_back(hazard);
    before.merge(before_[hazard]);
    const auto hazard_lane = static_cast<std::size_t>(program_.ops[hazard].lane);
    if (completes_in_order(program_.ops[hazard].lane)) {
      before.prefix[hazard_lane] = std::max(before.prefix[hazard_lane], position_[hazard] + 1);
    } else {
      before.add_unordered(position_[hazard]);
    }
  }
  position_.push_back(completes_in_order(op.lane) ? lane_length_[lane]++ : unordered_++);
  lane_last_[lane] = id;
  before_.push_back(std::move(before));
  program_.ops.push_back(std::move(op));
  return id;
}

}  // namespace terrace
