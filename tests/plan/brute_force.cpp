#include "tests/plan/brute_force.h"

#include <array>
#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "src/base/fail.h"

namespace terrace {
namespace {

constexpr std::size_t kMaxOps = 14;

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9E3779B97F4A7C15u + b + 0x632BE59BD9B4E019u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

struct World {
  std::array<std::vector<std::uint64_t>, kTiers> memory;
  std::vector<std::uint64_t> at_start;  // what each operation saw
  std::vector<std::uint64_t> at_end;
  std::uint32_t started = 0;
  std::uint32_t ended = 0;

  std::uint64_t key() const { return (std::uint64_t{started} << 32) | ended; }
  std::uint64_t fingerprint() const {
    std::uint64_t hash = 0;
    for (const auto& tier : memory) {
      for (const std::uint64_t value : tier) hash = mix(hash, value);
    }
    for (const std::uint64_t seen : at_start) hash = mix(hash, seen);
    for (const std::uint64_t seen : at_end) hash = mix(hash, seen);
    return hash;
  }
};

class Machine {
 public:
  explicit Machine(const StepProgram& program) : program_(program), previous_(program.ops.size(), kNone) {
    check(program.ops.size() <= kMaxOps, "{} operations are too many to explore", program.ops.size());
    std::array<OpId, kLanes> last;
    last.fill(kNone);
    for (OpId id = 0; id < program.ops.size(); ++id) {
      OpId& on_lane = last[static_cast<std::size_t>(program.ops[id].lane)];
      previous_[id] = on_lane;
      on_lane = id;
    }
  }

  World initial() const {
    World world;
    for (std::size_t tier = 0; tier < kTiers; ++tier) {
      for (std::uint64_t i = 0; i < program_.tier_bytes[tier]; ++i)
        world.memory[tier].push_back(mix(tier, i));
    }
    world.at_start.assign(program_.ops.size(), 0);
    world.at_end.assign(program_.ops.size(), 0);
    return world;
  }

  bool can_start(const World& world, OpId id) const {
    const Op& op = program_.ops[id];
    if (bit(world.started, id)) return false;
    const OpId previous = previous_[id];
    if (previous != kNone && !bit(completes_in_order(op.lane) ? world.ended : world.started, previous))
      return false;
    for (const OpId wait : op.waits) {
      if (!bit(world.ended, wait)) return false;
    }
    return true;
  }
  bool can_end(const World& world, OpId id) const { return bit(world.started, id) && !bit(world.ended, id); }

  void start(World& world, OpId id) const {
    world.started |= 1u << id;
    world.at_start[id] = look(world, id);
    each_written_byte(id,
                      [&](std::size_t tier, std::uint64_t at) { world.memory[tier][at] = mix(id + 1, ~at); });
  }
  void end(World& world, OpId id) const {
    world.ended |= 1u << id;
    world.at_end[id] = look(world, id);
    each_written_byte(id, [&](std::size_t tier, std::uint64_t at) {
      world.memory[tier][at] = mix(mix(id + 1, world.at_start[id]), at);
    });
  }
  bool done(const World& world) const { return world.ended == (1u << program_.ops.size()) - 1; }

  // Calls fn(next world) for every event that can happen now; false when there is none.
  bool step(const World& world, const std::function<void(World&&)>& fn) const {
    bool any = false;
    for (OpId id = 0; id < program_.ops.size(); ++id) {
      const bool starts = can_start(world, id);
      if (!starts && !can_end(world, id)) continue;
      any = true;
      World next = world;
      starts ? start(next, id) : end(next, id);
      fn(std::move(next));
    }
    return any;
  }

 private:
  static bool bit(std::uint32_t set, OpId id) { return ((set >> id) & 1u) != 0; }

  std::uint64_t look(const World& world, OpId id) const {
    std::uint64_t hash = 0;
    for (const Access& access : program_.ops[id].accesses) {
      const Slot& slot = program_.slots[access.slot];
      const std::uint64_t begin = slot.offset_bytes + access.offset_bytes;
      for (std::uint64_t i = 0; i < access.bytes; ++i) {
        hash = mix(hash, world.memory[static_cast<std::size_t>(slot.tier)].at(begin + i));
      }
    }
    return hash;
  }

  template <typename Fn>
  void each_written_byte(OpId id, Fn&& fn) const {
    for (const Access& access : program_.ops[id].accesses) {
      if (access.mode == AccessMode::read) continue;
      const Slot& slot = program_.slots[access.slot];
      const std::uint64_t begin = slot.offset_bytes + access.offset_bytes;
      for (std::uint64_t i = 0; i < access.bytes; ++i) fn(static_cast<std::size_t>(slot.tier), begin + i);
    }
  }

  const StepProgram& program_;
  std::vector<OpId> previous_;  // on its lane
};

}  // namespace

Exploration explore(const StepProgram& program) {
  const Machine machine(program);
  Exploration result;
  std::unordered_map<std::uint64_t, std::uint64_t> seen;  // events that have happened -> what they left
  std::vector<World> open{machine.initial()};
  seen.emplace(open[0].key(), open[0].fingerprint());
  while (!open.empty()) {
    const World world = std::move(open.back());
    open.pop_back();
    ++result.states;
    const bool moved = machine.step(world, [&](World&& next) {
      const std::uint64_t print = next.fingerprint();
      const auto [at, added] = seen.emplace(next.key(), print);
      if (added) {
        open.push_back(std::move(next));
      } else if (at->second != print) {
        result.one_outcome = false;
      }
    });
    if (!moved && !machine.done(world)) result.deadlock = true;
  }
  return result;
}

Exploration explore_every_order(const StepProgram& program) {
  const Machine machine(program);
  Exploration result;
  std::optional<std::uint64_t> outcome;
  const std::function<void(const World&)> go = [&](const World& world) {
    ++result.states;
    if (machine.step(world, [&](World&& next) { go(next); })) return;
    if (!machine.done(world)) {
      result.deadlock = true;
    } else if (!outcome) {
      outcome = world.fingerprint();
    } else if (*outcome != world.fingerprint()) {
      result.one_outcome = false;
    }
  };
  go(machine.initial());
  return result;
}

bool always_before(const StepProgram& program, OpId a, OpId b) {
  StepProgram bare = program;  // events only
  for (Op& op : bare.ops) op.accesses.clear();
  const Machine machine(bare);
  bool always = true;
  std::unordered_map<std::uint64_t, bool> seen;
  const std::function<void(const World&)> go = [&](const World& world) {
    if (!seen.emplace(world.key(), true).second || !always) return;
    if (machine.can_start(world, b) && ((world.ended >> a) & 1u) == 0) {
      always = false;
      return;
    }
    machine.step(world, [&](World&& next) { go(next); });
  };
  go(machine.initial());
  return always;
}

}  // namespace terrace
