// Collects the operations of a program in list order and derives their waits from the bytes they touch.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "src/plan/program.h"

namespace terrace {

// For each operation the waits are the transitive reduction of its hazards (read after write, write after
// read, write after write, on overlapping bytes of a tier) and of the waits it was given. Cost: a few
// microseconds an operation.
class Emitter {
 public:
  // `derive_waits` false: only collects (to measure what a program needs).
  Emitter(const std::vector<Slot>& residents, bool derive_waits);

  SlotId add_slot(const Slot& slot);
  // op.waits: dependencies beyond those of its bytes (the verdict). Returns its place in the list.
  OpId emit(Op op);

  const Slot& slot(SlotId id) const { return program_.slots[id]; }
  const std::vector<Op>& ops() const { return program_.ops; }
  StepProgram take() { return std::move(program_); }

 private:
  // Counts of operations by lane. Lanes start theirs in list order, so the starts that precede a start are a
  // prefix of each lane.
  using Clock = std::array<std::uint32_t, kLanes>;

  struct Range {
    std::uint64_t end = 0;
    OpId writer = kNone;
    std::vector<OpId> readers;
  };
  using RangeMap = std::map<std::uint64_t, Range>;

  void split(RangeMap& map, std::uint64_t at);
  void touch(const Access& access, OpId op, std::vector<OpId>& hazards);
  bool known_complete(const Clock& started, OpId op) const;
  void follow(Clock& started, OpId earlier, bool completed, std::size_t lane, std::uint32_t position);

  StepProgram program_;
  bool derive_waits_;
  std::array<RangeMap, kTiers> ranges_;
  std::vector<Clock> started_;  // [op]: how many of each lane have started when it has, itself included
  // [op]: the first place on each lane of an operation that starts only after this one has completed.
  std::vector<Clock> completed_;
  std::array<std::uint32_t, kLanes> lane_length_{};
  std::array<OpId, kLanes> lane_last_{};
};

}  // namespace terrace
