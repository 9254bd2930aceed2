// The checker's rules, a file each. Internal to check_program.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "src/plan/check_program.h"
#include "src/plan/happens_before.h"

namespace terrace::check_rules {

// Collects violations up to kMaxViolations.
class Findings {
 public:
  void add(Rule rule, OpId op, OpId other, SlotId slot, std::string text) {
    if (list_.size() < kMaxViolations) list_.push_back({rule, op, other, slot, std::move(text)});
  }
  bool empty() const { return list_.empty(); }
  std::vector<Violation> take() { return std::move(list_); }

 private:
  std::vector<Violation> list_;
};

// check_form.cpp: the chunks tile the units; ids, lanes, tiers and ranges are in place; waits point to
// earlier operations. The rules below want both to have found nothing.
void check_input(const CheckInput& input, Findings& findings);
void check_form(const StepProgram& program, const CheckInput& input, Findings& findings);

// check_memory.cpp
// The positions of the list at which a slot is live: `first` to `last`. After the last operation comes one
// more position, the border to the next program.
struct Interval {
  OpId first = kNone;  // kNone: never live
  OpId last = 0;
};
std::vector<Interval> live_intervals(const StepProgram& program);  // [slot]
void check_overlap(const StepProgram& program, Findings& findings);
void check_hazards(const StepProgram& program, const HappensBefore& order, Findings& findings);
void check_defined(const StepProgram& program, Findings& findings);

// check_data.cpp: what every slot holds, followed through the list, with the pending part of the step before
// or (predicated operations left out) without.
enum class Pending : std::uint8_t { something, nothing };
void check_data(const StepProgram& program, const CheckInput& input, Pending pending, Findings& findings);

// check_training.cpp: how often, and in which order, each operation stands in the list.
void check_counts(const StepProgram& program, const CheckInput& input, const HappensBefore& order,
                  Findings& findings);

inline bool trains(const StepProgram& program) {
  return program.kind == ProgramKind::train || program.kind == ProgramKind::train_commit;
}

// Does the program begin with what the one before has left pending?
inline bool is_periodic(const StepProgram& program) {
  return trains(program) || program.kind == ProgramKind::drain;
}
inline bool updates_forward(const StepProgram& program) {
  return is_periodic(program) && program.updates == UpdateTime::next_forward;
}
inline bool updates_backward(const StepProgram& program) {
  return is_periodic(program) && program.updates == UpdateTime::backward;
}
// [chunk]: its slot carried that way, or kNone. Wants a program of good form.
inline std::vector<SlotId> carried_slots(const StepProgram& program, Carry carry, std::size_t chunks) {
  std::vector<SlotId> found(chunks, kNone);
  for (SlotId id = 0; id < program.slots.size(); ++id) {
    const Slot& slot = program.slots[id];
    if (slot.carry == carry && slot.chunk < chunks) found[slot.chunk] = id;
  }
  return found;
}

// An operation that moves data from one tier (or slot) to another and changes none.
constexpr bool is_transfer(OpKind kind) {
  return kind < OpKind::all_gather;
}
// An operation that all ranks of a group enter together.
constexpr bool is_collective(OpKind kind) {
  return kind == OpKind::all_gather || kind == OpKind::reduce_scatter;
}
// An operation that adds up a unit's contributions before the fold.
constexpr bool adds_up(OpKind kind) {
  return kind == OpKind::accumulate || kind == OpKind::round_sum || kind == OpKind::sum_group;
}
constexpr bool is_compute(OpKind kind) {
  return kind == OpKind::forward || kind == OpKind::backward || kind == OpKind::recompute;
}

}  // namespace terrace::check_rules
