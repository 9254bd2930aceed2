#include "tests/plan/tiny_layout.h"

#include <algorithm>
#include <vector>

#include "src/plan/check_program.h"

namespace terrace {
namespace {

struct Live {
  SlotId slot = kNone;
  int turn = 0;  // of being placed
  OpId first = kNone;
  OpId last = 0;
};

std::vector<Live> lives_of(const StepProgram& program, bool compact) {
  constexpr OpId kEnd = kNone - 1;
  std::vector<Live> lives(program.slots.size());
  for (OpId id = 0; id < program.ops.size(); ++id) {
    for (const Access& access : program.ops[id].accesses) {
      Live& live = lives[access.slot];
      live.first = std::min(live.first, id);
      live.last = id;
    }
  }
  for (SlotId id = 0; id < lives.size(); ++id) {
    const Slot& slot = program.slots[id];
    Live& live = lives[id];
    live.slot = id;
    live.turn = slot.resident || slot.carry == Carry::in ? 0 : (slot.carry == Carry::out ? 1 : 2);
    const bool always = slot.resident || (!compact && slot.carry == Carry::none);
    if (always || slot.carry == Carry::in) live.first = 0;
    if (always || slot.carry == Carry::out) live.last = kEnd;
  }
  std::stable_sort(lives.begin(), lives.end(), [](const Live& a, const Live& b) {
    return a.turn != b.turn ? a.turn < b.turn : a.first < b.first;
  });
  return lives;
}

bool must_follow(const StepProgram& program, OpId a, OpId b) {
  const OpKind x = program.ops[a].kind;
  const OpKind y = program.ops[b].kind;
  return (x == OpKind::fold && y == OpKind::grad_stats) ||
         (x == OpKind::write_state && y == OpKind::commit) || (x == OpKind::commit && y == OpKind::update);
}

}  // namespace

void place(StepProgram& program, bool compact) {
  const std::vector<Live> lives = lives_of(program, compact);
  program.tier_bytes = {};
  for (std::size_t i = 0; i < lives.size(); ++i) {
    Slot& slot = program.slots[lives[i].slot];
    for (const Slot& in : program.slots) {
      if (slot.carry == Carry::out && in.carry == Carry::in && in.chunk == slot.chunk)
        slot.offset_bytes = in.offset_bytes;
    }
    for (bool moved = slot.carry != Carry::out; moved;) {
      moved = false;
      for (std::size_t j = 0; j < i; ++j) {
        const Slot& other = program.slots[lives[j].slot];
        const bool together = lives[i].first <= lives[j].last && lives[j].first <= lives[i].last;
        if (!together || slot.tier != other.tier || slot.offset_bytes >= other.offset_bytes + other.bytes ||
            other.offset_bytes >= slot.offset_bytes + slot.bytes) {
          continue;
        }
        slot.offset_bytes = other.offset_bytes + other.bytes;
        moved = true;
      }
    }
    std::uint64_t& used = program.tier_bytes[static_cast<std::size_t>(slot.tier)];
    used = std::max(used, slot.offset_bytes + slot.bytes);
  }
}

bool conflict(const StepProgram& program, OpId a, OpId b) {
  for (const Access& x : program.ops[a].accesses) {
    for (const Access& y : program.ops[b].accesses) {
      const Slot& s = program.slots[x.slot];
      const Slot& t = program.slots[y.slot];
      if (s.tier != t.tier || (x.mode == AccessMode::read && y.mode == AccessMode::read)) continue;
      const std::uint64_t i = s.offset_bytes + x.offset_bytes;
      const std::uint64_t j = t.offset_bytes + y.offset_bytes;
      if (i < j + y.bytes && j < i + x.bytes) return true;
    }
  }
  return false;
}

void derive_waits(StepProgram& program) {
  for (OpId b = 0; b < program.ops.size(); ++b) {
    program.ops[b].waits.clear();
    for (OpId a = 0; a < b; ++a) {
      if (conflict(program, a, b) || must_follow(program, a, b)) program.ops[b].waits.push_back(a);
    }
  }
  for (const WaitOf& wait : redundant_waits(program)) std::erase(program.ops[wait.op].waits, wait.wait);
}

}  // namespace terrace
