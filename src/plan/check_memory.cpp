// Live slots do not overlap; conflicting accesses are ordered; what is read, or carried out, was written
// through the same slot.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <map>
#include <set>

#include "src/plan/check_rules.h"
#include "src/plan/range_map.h"

namespace terrace::check_rules {
namespace {

// Who touched a byte last.
struct Touch {
  OpId writer = kNone;
  std::vector<OpId> readers;  // since the writer; on a lane that completes in order only its last
  void advance(std::uint64_t) {}
};

// Through which slot a byte was written last, and by whom.
struct Source {
  SlotId slot = kNone;
  OpId op = kNone;
  void advance(std::uint64_t) {}
};

struct Range {
  std::size_t tier;
  std::uint64_t begin;
  std::uint64_t end;
};

Range range_of(const StepProgram& program, const Access& access) {
  const Slot& slot = program.slots[access.slot];
  const std::uint64_t begin = slot.offset_bytes + access.offset_bytes;
  return {static_cast<std::size_t>(slot.tier), begin, begin + access.bytes};
}

}  // namespace

std::vector<Interval> live_intervals(const StepProgram& program) {
  const auto end = static_cast<OpId>(program.ops.size());
  std::vector<Interval> intervals(program.slots.size());
  for (OpId id = 0; id < end; ++id) {
    for (const Access& access : program.ops[id].accesses) {
      Interval& interval = intervals[access.slot];
      if (interval.first == kNone) interval.first = id;
      interval.last = id;
    }
  }
  for (SlotId id = 0; id < intervals.size(); ++id) {
    const Slot& slot = program.slots[id];
    Interval& interval = intervals[id];
    const bool untouched = interval.first == kNone;
    if (slot.resident || (slot.carry == Carry::in && untouched)) {
      interval = {0, end};
    } else if (slot.carry == Carry::in) {
      interval.first = 0;
    } else if (slot.carry == Carry::out) {
      interval = {untouched ? end : interval.first, end};
    }
  }
  return intervals;
}

void check_overlap(const StepProgram& program, Findings& findings) {
  const std::vector<Interval> intervals = live_intervals(program);
  const auto count = static_cast<OpId>(program.ops.size());
  // Slots that become live before operation i, and that are dead after it; residents first.
  std::vector<std::vector<SlotId>> begins(count + 1);
  std::vector<std::vector<SlotId>> ends(count + 1);
  for (const bool resident : {true, false}) {
    for (SlotId id = 0; id < program.slots.size(); ++id) {
      const Slot& slot = program.slots[id];
      if (slot.bytes == 0 || slot.resident != resident || intervals[id].first == kNone) continue;
      begins[intervals[id].first].push_back(id);
      ends[intervals[id].last].push_back(id);
    }
  }
  std::array<std::map<std::uint64_t, SlotId>, kTiers> live;  // by offset; disjoint
  for (OpId at = 0; at <= count; ++at) {
    for (const SlotId id : begins[at]) {
      const Slot& slot = program.slots[id];
      auto& tier = live[static_cast<std::size_t>(slot.tier)];
      auto next = tier.lower_bound(slot.offset_bytes);
      SlotId clash = kNone;
      if (next != tier.end() && next->first < slot.offset_bytes + slot.bytes) clash = next->second;
      if (next != tier.begin()) {
        const SlotId before = std::prev(next)->second;
        if (program.slots[before].offset_bytes + program.slots[before].bytes > slot.offset_bytes)
          clash = before;
      }
      if (clash != kNone) {
        findings.add(Rule::overlap, at < count ? at : kNone, kNone, id,
                     fmt::format("{} and {} share bytes while both are live", describe_slot(program, id),
                                 describe_slot(program, clash)));
      } else {
        tier.emplace(slot.offset_bytes, id);
      }
    }
    for (const SlotId id : ends[at]) {
      auto& tier = live[static_cast<std::size_t>(program.slots[id].tier)];
      const auto found = tier.find(program.slots[id].offset_bytes);
      if (found != tier.end() && found->second == id) tier.erase(found);
    }
  }
}

void check_hazards(const StepProgram& program, const HappensBefore& order, Findings& findings) {
  std::array<RangeMap<Touch>, kTiers> touched;
  for (OpId id = 0; id < program.ops.size(); ++id) {
    const Op& op = program.ops[id];
    std::set<std::pair<OpId, SlotId>> reported;
    for (const Access& access : op.accesses) {
      const Range range = range_of(program, access);
      const bool writes = access.mode != AccessMode::read;
      const auto meet = [&](OpId earlier, bool earlier_writes) {
        if (order.before(earlier, id) || !reported.emplace(earlier, access.slot).second) return;
        findings.add(Rule::hazard, id, earlier, access.slot,
                     fmt::format("{} {} bytes of {} that {} {}, and nothing makes it wait for that",
                                 describe_op(program, id), writes ? "writes" : "reads",
                                 describe_slot(program, access.slot), describe_op(program, earlier),
                                 earlier_writes ? "writes" : "reads"));
      };
      touched[range.tier].for_each(range.begin, range.end, [&](const Touch& touch) {
        // Whatever came before the writer is ordered before it, or was reported when the writer came.
        if (touch.writer != kNone) meet(touch.writer, true);
        if (writes) {
          for (const OpId reader : touch.readers) meet(reader, false);
        }
      });
    }
    for (const Access& access : op.accesses) {
      const Range range = range_of(program, access);
      if (access.mode != AccessMode::read) {
        touched[range.tier].assign(range.begin, range.end, Touch{id, {}});
        continue;
      }
      touched[range.tier].for_each(range.begin, range.end, [&](Touch& touch) {
        if (completes_in_order(op.lane)) {
          std::erase_if(touch.readers, [&](OpId reader) { return program.ops[reader].lane == op.lane; });
        } else if (!touch.readers.empty() && touch.readers.back() == id) {
          return;
        }
        touch.readers.push_back(id);
      });
    }
  }
}

void check_defined(const StepProgram& program, Findings& findings) {
  std::array<RangeMap<Source>, kTiers> sources;
  const auto writer = [&](const Source& source) {
    return source.op == kNone ? "nothing has written"
                              : fmt::format("{} wrote through {}", describe_op(program, source.op),
                                            describe_slot(program, source.slot));
  };
  for (OpId id = 0; id < program.ops.size(); ++id) {
    const Op& op = program.ops[id];
    for (const Access& access : op.accesses) {
      // What stands in a workspace is nobody's.
      if (access.mode == AccessMode::write || access.role == Role::workspace) continue;
      const Range range = range_of(program, access);
      const Slot& slot = program.slots[access.slot];
      bool reported = false;
      sources[range.tier].visit(
          range.begin, range.end, [&](std::uint64_t begin, std::uint64_t end, const Source& source) {
            const bool held = source.slot == kNone && (slot.resident || slot.carry == Carry::in);
            if (held || source.slot == access.slot || reported) return;
            reported = true;
            findings.add(Rule::undefined, id, source.op, access.slot,
                         fmt::format("{} reads bytes [{}, {}) of {}, which {}", describe_op(program, id),
                                     begin - slot.offset_bytes, end - slot.offset_bytes,
                                     describe_slot(program, access.slot), writer(source)));
          });
    }
    for (const Access& access : op.accesses) {
      if (access.mode == AccessMode::read) continue;
      const Range range = range_of(program, access);
      sources[range.tier].assign(range.begin, range.end, Source{access.slot, id});
    }
  }
  for (SlotId id = 0; id < program.slots.size(); ++id) {
    const Slot& slot = program.slots[id];
    if (slot.carry != Carry::out) continue;
    bool reported = false;
    sources[static_cast<std::size_t>(slot.tier)].visit(
        slot.offset_bytes, slot.offset_bytes + slot.bytes,
        [&](std::uint64_t begin, std::uint64_t end, const Source& source) {
          if (source.slot == id || reported) return;
          reported = true;
          findings.add(
              Rule::undefined, kNone, source.op, id,
              fmt::format("bytes [{}, {}) of {} are carried out, which {}", begin - slot.offset_bytes,
                          end - slot.offset_bytes, describe_slot(program, id), writer(source)));
        });
  }
}

}  // namespace terrace::check_rules
