// Is a step program legal? Recomputed from the program alone: nothing here is shared with the compiler. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "src/plan/model_shape.h"
#include "src/plan/program.h"

namespace terrace {

// What a program must be true to, beside itself.
struct CheckChunk {
  std::uint32_t unit = 0;
  std::uint64_t first_numel = 0;  // in the unit's padded flat parameter; the chunks of a unit tile it
  std::uint64_t numel = 0;
  Tier state_home = Tier::host;   // where a resident state_chunk slot holds its state between steps
  Tier param_home = Tier::host;   // where a resident param_chunk (or piece) slot holds its 16-bit parameters
  std::uint64_t state_bytes = 0;  // all streams and the trailer
  std::uint32_t owner = 0;        // the rank that folds its summands and writes its state to the store
  bool frozen = false;      // no fold, no update, no sum; its state and parameters are those of the start
  bool kept_whole = false;  // every rank keeps its parameters, as it keeps those of the whole unit
};

// The ranks of the run; shards and replicas as rank_table.h says.
struct CheckRanks {
  std::uint32_t ranks = 1;
  std::uint32_t rank = 0;  // whose program it is
  std::uint32_t shards = 1;
  std::uint32_t replicas = 1;
  bool keeps_all_parameters = false;
  Reduction reduction = Reduction::each;
};

struct CheckInput {
  ModelShape model;
  std::vector<CheckChunk> chunks;  // index = Op::chunk, Slot::chunk
  std::uint32_t contributions = 1;
  UpdateTime updates = UpdateTime::next_forward;
  CheckRanks ranks = {};
};

enum class Rule : std::uint8_t {
  input,      // the chunks do not tile the units
  form,       // ids, lanes, tiers, ranges: the program is not well formed
  order,      // a wait does not point to an earlier operation
  overlap,    // two live slots share bytes (hence, with form, a tier's budget would not hold them)
  hazard,     // two operations touch the same bytes, one writes, and nothing orders them
  undefined,  // an operation reads bytes that its slot does not hold
  operand,    // an operand is missing, too small, or holds other data than the operation needs
  count,      // something is done too often or not at all
  verdict,    // the verdict does not wait for a fold
  home,       // at the end a home or a carried slot does not hold what the next program needs there
  commit,     // the cut is not whole, or an update does not wait for it
  predicate,  // predicated where it must not be, or the reverse
  carried,    // what a program carries out is not what its follower takes in
  collective  // ranks do not enter their collectives in one order, or with parts that fit together
};

// One broken rule, in words that name the operations, the slot and the bytes. Ids that do not apply are
// kNone.
struct Violation {
  Rule rule = Rule::form;
  OpId op = kNone;
  OpId other = kNone;
  SlotId slot = kNone;
  std::string text;
};

// No more than this many are reported.
inline constexpr std::size_t kMaxViolations = 100;

// Empty: the program is legal. It proves
// - lanes that run in list order cannot deadlock: every wait points to an earlier operation;
// - of two accesses to the same bytes of which one writes, the earlier in the list completes before the later
//   starts, so every run gives what running the list one by one gives;
// - live slots lie inside their tier's budget and share no byte; nothing overlaps a resident slot, a slot
//   carried in before its last access, or one carried out after its first;
// - every byte read was written through the same slot before (or the slot is resident or carried in), and is
//   what the operation needs: parameters of its unit in the one version of the step, its own activations,
//   sums folded in ascending order, the sum of the right step;
// - both when the step before has left its part pending and when nothing is pending (predicated operations
//   left out), what homes and carried slots hold at the end is what the next program starts from;
// - training: each summand (reduction.h) of each chunk is folded once and the verdict waits for every fold;
//   each chunk is updated once, each parameter home written once, each state on nvme written once for each
//   update;
// - a frozen chunk is made from its state when a run starts, and touched by nothing after;
// - a commit finds the state of the step before of every chunk in the store, waits for every write of it, and
//   no update that is not part of it runs before.
// Of several ranks: that the rank computes its own contributions alone, adds up before the fold what
// Reduction says and nothing else, folds all summands of the chunks it owns, updates the chunks it holds,
// writes to the store what it owns and to its copies what it only holds; that what it sends is what the
// others take it for (its range, in the version of the step; its rounded sums), and that it takes for others'
// what their programs of the same kind send. That these meet is check_family's. Wants slots to be the same in
// every program of a rank: resident ones, and carried ones (check_carried). Cost: O(n log n) in operations,
// accesses and slots: about 2 us an operation.
std::vector<Violation> check_program(const StepProgram& program, const CheckInput& input);

// May `after` follow `before`? What one carries out is what the other takes in: the same chunks at the same
// places. The slot of a violation is one of `before` when `after` does not take it in, else one of `after`.
// Cost: O(n log n) in slots.
std::vector<Violation> check_carried(const StepProgram& before, const StepProgram& after);

// The hazard rule alone. Wants a program whose waits point to earlier operations and whose accesses name its
// slots.
std::vector<Violation> find_hazards(const StepProgram& program);

// A wait that the lanes and the operation's other waits imply: a compiler that emits the transitive reduction
// has none.
struct WaitOf {
  OpId op = 0;
  OpId wait = 0;
  friend bool operator==(const WaitOf&, const WaitOf&) = default;
};
std::vector<WaitOf> redundant_waits(const StepProgram& program);

// Calls fn once for every wait of every operation with the program that lacks just that wait. For tests.
void for_each_dropped_wait(const StepProgram& program,
                           const std::function<void(const StepProgram&, WaitOf)>& fn);

// The most bytes of `tier` that are live at once: resident slots; others from their first access to their
// last; those carried in from the start, those carried out to the end.
std::uint64_t peak_live_bytes(const StepProgram& program, Tier tier);

std::string_view name_of(Rule rule);

// "operation 17 (update of chunk 3 on optimizer)".
std::string describe_op(const StepProgram& program, OpId op);
// "slot 4 (state_chunk of chunk 3 on host, bytes [0, 4096))".
std::string describe_slot(const StepProgram& program, SlotId slot);

}  // namespace terrace
