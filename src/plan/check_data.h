// What every slot of a program holds, followed through the list. Internal to check_program.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/plan/check_ranks.h"
#include "src/plan/check_rules.h"
#include "src/plan/range_map.h"

namespace terrace::check_rules {

enum class ValueKind : std::uint8_t {
  nothing,
  params,
  state,
  contribution,
  local_sum,  // of a unit, over `tag` contributions of this rank
  summand,    // of a unit, where it is a sum of contributions
  sum,
  rounded_sum,  // of a unit, in grad dtype, on its way between replicas and where it arrived
  pending_sum,  // the step before's, complete
  activation,
  activation_grad,
  saved,
  shared_grad
};

// Versions of parameters and states. `stale`: what the store holds of a chunk whose newest state is
// elsewhere, and what memory holds before the parameters are made.
inline constexpr std::uint32_t kStale = 0;
inline constexpr std::uint32_t kBefore = 1;
inline constexpr std::uint32_t kUpdated = 2;

// What an operation produced, and where in it a byte lies.
struct Value {
  ValueKind kind = ValueKind::nothing;
  std::uint32_t id = kNone;  // chunk of a state or sum, else unit
  std::uint32_t tag = 0;     // version of params and state, summands folded into a sum, the summand, else the
                             // contribution
  std::uint32_t uses = 0;    // shared_grad: tied uses added so far
  friend bool operator==(const Value&, const Value&) = default;
};
std::string describe(const Value& value);

struct Content {
  Value value;
  std::uint64_t offset = 0;  // in the value
  void advance(std::uint64_t by) { offset += by; }
};

// Each byte of a slot is a byte of a value; each operation is asked whether its operands are what it needs.
// Operands are found as program.h orders them. The hazard rule makes the list's order the only one that
// matters. What homes and carried slots hold at the border to the programs before and after is
// check_border's.
class DataFlow {
 public:
  DataFlow(const StepProgram& program, const CheckInput& input, Pending pending, Findings& findings);
  void run();

 private:
  // check_data.cpp
  void report(Rule rule, SlotId slot, std::string text);
  bool holds(SlotId slot, std::uint64_t offset, std::uint64_t bytes, const Value& wanted, std::uint64_t from,
             Value* found = nullptr) const;
  void need(const Access& access, std::string_view what, const Value& wanted, std::uint64_t from,
            std::uint64_t bytes);
  void put(const Access& access, std::string_view what, const Value& value, std::uint64_t from,
           std::uint64_t bytes);
  bool has_form(const Op& op, std::initializer_list<AccessMode> modes);
  void transfer(const Op& op);
  void check_predicate(const Op& op, const Access& to, const Content& content);

  // check_collective.cpp
  Value spread_sum(std::uint32_t unit) const;
  void all_gather(const Op& op);
  void reduce_scatter(const Op& op);

  // check_reduction.cpp
  Value summand(std::uint32_t unit, std::uint32_t index) const;
  void accumulate(const Op& op);
  void round_sum(const Op& op);
  void sum_group(const Op& op);

  // check_border.cpp
  Content initial(SlotId slot) const;
  void begin(SlotId slot);
  std::uint32_t first_version(std::size_t chunk) const;
  std::uint32_t last_version(std::size_t chunk) const;
  void commit();
  void check_home(Rule rule, SlotId slot, const Value& wanted, std::uint64_t from, std::uint64_t bytes,
                  std::uint64_t offset = 0);
  void check_state(SlotId slot);
  void check_params(SlotId slot);
  void check_sum(SlotId slot);
  void check_homes();

  // check_operands.cpp
  void take(const Op& op, Role role, std::string_view what, const Value& wanted, std::uint64_t bytes);
  void give(const Op& op, Role role, std::string_view what, const Value& value, std::uint64_t bytes,
            bool may_lack = false);
  void lacks(std::string_view what);
  void compute(const Op& op);
  void backward(const Op& op, const UnitShape& unit);
  void tied_uses(const Op& op, const UnitShape& unit);
  // Of an element of a sum that is added up: a single summand is not widened.
  std::uint64_t added_bytes() const { return view_.summands() == 1 ? grad_bytes_ : sizeof(float); }
  // Of an element of a sum that the update reads: what comes from another replica is rounded.
  std::uint64_t sum_bytes() const { return view_.rounds_sums() ? grad_bytes_ : added_bytes(); }
  // Does the slot hold this step's only summand, which is the sum?
  bool holds_only_summand(SlotId slot, std::uint64_t offset, std::uint32_t chunk) const;
  void fold(const Op& op);
  void update(const Op& op);
  void cast_param(const Op& op);
  void put_params(const Access& access, const CheckChunk& chunk, std::uint32_t version);

  const StepProgram& program_;
  const CheckInput& input_;
  const RankView view_;
  const bool pending_;
  const std::uint32_t step_;    // version that the step computes with and a commit stores
  const std::uint32_t newest_;  // version that homes hold at the end
  Findings& findings_;
  const std::uint64_t param_bytes_;  // of an element
  const std::uint64_t grad_bytes_;
  const std::vector<SlotId> carried_in_, carried_out_;       // [chunk]
  std::vector<bool> state_found_, param_found_, sum_found_;  // [chunk]: its home, at the end
  std::vector<std::uint32_t> uses_;                          // [unit]: units that hand it a shared gradient
  std::vector<RangeMap<Content>> held_;
  std::vector<std::uint64_t> written_bytes_;  // [slot]
  OpId op_ = kNone;
};

}  // namespace terrace::check_rules
