#include "src/plan/check_program.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "src/plan/check_ranks.h"
#include "src/plan/check_rules.h"
#include "src/plan/happens_before.h"

namespace terrace {

using check_rules::Findings;

std::vector<Violation> check_program(const StepProgram& program, const CheckInput& input) {
  Findings findings;
  check_rules::check_input(input, findings);
  check_rules::check_mesh(input, findings);
  check_rules::check_form(program, input, findings);
  if (!findings.empty()) return findings.take();

  const HappensBefore order(program);
  check_rules::check_overlap(program, findings);
  check_rules::check_hazards(program, order, findings);
  check_rules::check_defined(program, findings);
  check_rules::check_counts(program, input, order, findings);
  if (check_rules::is_periodic(program)) {
    check_rules::check_data(program, input, check_rules::Pending::something, findings);
  }
  check_rules::check_data(program, input, check_rules::Pending::nothing, findings);
  return findings.take();
}

std::vector<Violation> check_carried(const StepProgram& before, const StepProgram& after) {
  const auto place = [](const Slot& slot) {
    return std::tuple(slot.chunk, slot.tier, slot.offset_bytes, slot.bytes);
  };
  Findings findings;
  const auto compare = [&](const StepProgram& one, Carry way, const StepProgram& other, Carry back) {
    std::set<decltype(place(Slot{}))> places;
    for (const Slot& slot : other.slots) {
      if (slot.carry == back) places.insert(place(slot));
    }
    for (SlotId id = 0; id < one.slots.size(); ++id) {
      const Slot& slot = one.slots[id];
      if (slot.carry != way || places.contains(place(slot))) continue;
      findings.add(Rule::carried, kNone, kNone, id,
                   fmt::format("{} is carried {} by the {} program and not {} by the {} program",
                               describe_slot(one, id), way == Carry::out ? "out" : "in", name_of(one.kind),
                               way == Carry::out ? "taken in" : "left", name_of(other.kind)));
    }
  };
  compare(before, Carry::out, after, Carry::in);
  compare(after, Carry::in, before, Carry::out);
  return findings.take();
}

std::vector<Violation> find_hazards(const StepProgram& program) {
  Findings findings;
  check_rules::check_hazards(program, HappensBefore(program), findings);
  return findings.take();
}

std::vector<WaitOf> redundant_waits(const StepProgram& program) {
  const HappensBefore order(program);
  std::vector<WaitOf> found;
  for (OpId id = 0; id < program.ops.size(); ++id) {
    const Op& op = program.ops[id];
    const OpId previous = order.previous_on_lane(id);
    for (std::size_t i = 0; i < op.waits.size(); ++i) {
      const OpId wait = op.waits[i];
      bool implied = previous != kNone &&
                     (order.before(wait, previous) || (wait == previous && completes_in_order(op.lane)));
      for (std::size_t j = 0; j < op.waits.size() && !implied; ++j) {
        const bool twice = op.waits[j] == wait && j < i;
        implied = twice || (op.waits[j] != wait && order.before(wait, op.waits[j]));
      }
      if (implied) found.push_back({id, wait});
    }
  }
  return found;
}

void for_each_dropped_wait(const StepProgram& program,
                           const std::function<void(const StepProgram&, WaitOf)>& fn) {
  StepProgram dropped = program;
  for (OpId id = 0; id < program.ops.size(); ++id) {
    const std::vector<OpId>& waits = program.ops[id].waits;
    for (std::size_t i = 0; i < waits.size(); ++i) {
      auto& left = dropped.ops[id].waits;
      left = waits;
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(i));
      fn(dropped, WaitOf{id, waits[i]});
    }
    dropped.ops[id].waits = waits;
  }
}

std::uint64_t peak_live_bytes(const StepProgram& program, Tier tier) {
  const std::vector<check_rules::Interval> intervals = check_rules::live_intervals(program);
  const std::size_t positions = program.ops.size() + 1;
  std::vector<std::uint64_t> begins(positions, 0);
  std::vector<std::uint64_t> ends(positions + 1, 0);
  for (SlotId id = 0; id < program.slots.size(); ++id) {
    const Slot& slot = program.slots[id];
    if (slot.tier != tier || intervals[id].first == kNone) continue;
    begins[intervals[id].first] += slot.bytes;
    ends[intervals[id].last + std::size_t{1}] += slot.bytes;
  }
  std::uint64_t live = 0;
  std::uint64_t peak = 0;
  for (std::size_t at = 0; at < positions; ++at) {
    live = live + begins[at] - ends[at];
    peak = std::max(peak, live);
  }
  return peak;
}

std::string_view name_of(Rule rule) {
  switch (rule) {
    case Rule::input:
      return "input";
    case Rule::form:
      return "form";
    case Rule::order:
      return "order";
    case Rule::overlap:
      return "overlap";
    case Rule::hazard:
      return "hazard";
    case Rule::undefined:
      return "undefined";
    case Rule::operand:
      return "operand";
    case Rule::count:
      return "count";
    case Rule::verdict:
      return "verdict";
    case Rule::home:
      return "home";
    case Rule::commit:
      return "commit";
    case Rule::predicate:
      return "predicate";
    case Rule::carried:
      return "carried";
    case Rule::collective:
      return "collective";
  }
  return "unknown rule";
}

namespace {

std::string subject(std::uint32_t unit, std::uint32_t chunk, std::uint32_t micro_batch) {
  std::string text;
  if (chunk != kNone) {
    text += fmt::format(" of chunk {}", chunk);
  } else if (unit != kNone) {
    text += fmt::format(" of unit {}", unit);
  }
  if (micro_batch != kNone) text += fmt::format(", contribution {}", micro_batch);
  return text;
}

}  // namespace

std::string describe_op(const StepProgram& program, OpId op) {
  if (op >= program.ops.size()) return fmt::format("operation {} (not in the list)", op);
  const Op& o = program.ops[op];
  return fmt::format("operation {} ({}{} on {})", op, name_of(o.kind),
                     subject(o.unit, o.chunk, o.micro_batch), name_of(o.lane));
}

std::string describe_slot(const StepProgram& program, SlotId slot) {
  if (slot >= program.slots.size()) return fmt::format("slot {} (not in the table)", slot);
  const Slot& s = program.slots[slot];
  return fmt::format("slot {} ({}{} on {}, bytes [{}, {}))", slot, name_of(s.item),
                     subject(s.unit, s.chunk, s.micro_batch), name_of(s.tier), s.offset_bytes,
                     s.offset_bytes + s.bytes);
}

}  // namespace terrace
