// The step program: the immutable list of operations of one step, with dependencies, lanes and slots.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace terrace {

enum class Tier : std::uint8_t { device, host, nvme };
inline constexpr int kTiers = 3;

// A resource that runs operations in list order. All lanes but nvme and store also complete in list order;
// these two issue in order and complete out of order, so two of their operations are ordered only by waits.
// Both use the disks: nvme moves scratch (what compute waits for), store the states, so that neither queues
// behind what the other has to wait for. While a commit flushes, reads and scratch transfers go on;
// the store takes no write.
enum class Lane : std::uint8_t { compute, h2d, d2h, collective, nvme, optimizer, store, commit };
inline constexpr int kLanes = 8;

enum class OpKind : std::uint8_t {
  read_state,
  write_state,  // store: the store's extent of a chunk
  read_param,
  write_param,  // nvme: scratch
  read_gradient,
  write_gradient,  // nvme: scratch
  read_activation,
  write_activation,  // nvme: scratch
  copy_to_device,    // h2d: into a device slot, from a host slot or another device slot
  copy_to_host,      // d2h
  all_gather,
  reduce_scatter,  // collective
  forward,
  backward,
  recompute,    // compute, run by the executor
  accumulate,   // compute: adds this rank's contribution of a unit to its local sum
  round_sum,    // compute: rounds the local sum of a unit to grad dtype
  sum_group,    // compute: the sum of what a group's ranks contributed in a round, rounded
  fold,         // adds one summand of a chunk to its sum (compute lane on the device tier, else optimizer)
  grad_stats,   // the verdict
  update,       // optimizer, predicated
  cast_param,   // optimizer: 16-bit parameters from the master, when a run starts
  visit_state,  // optimizer: shows a chunk's state to a visitor (hash, export)
  commit        // commit: makes all that was written the store's new cut
};

enum class Item : std::uint8_t {
  piece,         // a unit's flat parameter, whole, on the device
  param_chunk,   // 16-bit parameters of a chunk: its home, or a staging copy
  contribution,  // a unit's flat gradient of one micro-batch on the device
  grad_chunk,    // one summand's slice of a chunk (grad dtype), on its way to the fold
  grad_sum,      // the sum of a chunk's summands: its home or a staging copy (fp32; grad dtype where there is
                 // one summand, and where sums go to other replicas)
  state_chunk,   // all streams of a chunk and the extent's trailer: its home, or a staging copy
  activation,    // output of a unit
  activation_grad,  // gradient of a unit's output
  saved,            // what forward saves for backward
  workspace,
  shared_grad,  // fp32 gradient of a tied use
  received,     // what the ranks of a group sent to the own part (or the shard) in a round, one after another
  sum_piece,    // a unit's summed gradient (grad dtype) on the device, on its way between replicas
  accumulator,  // fp32 sum of an own chunk's summands, where its grad_sum is grad dtype: its home or a copy
  local_sum,    // fp32 sum of a unit's contributions of this rank (Reduction::last)
  group_sum     // the sum of a group's contributions of one round (grad dtype): own part, or the shard
};

// Which operand of a compute operation an access is.
enum class Role : std::uint8_t {
  none,
  params,
  shared_params,
  input,
  output,
  saved,
  output_grad,
  input_grad,
  grads,
  shared_grad,
  workspace,
  mine,     // of an all_gather: this rank's range
  others,   // of an all_gather: a range of other ranks
  received  // of a reduce_scatter
};
inline constexpr int kRoles = 14;

// The ranks that a collective is among (rank_table.h).
enum class RankGroup : std::uint8_t { world, shard, replicate };

using OpId = std::uint32_t;
using SlotId = std::uint32_t;
inline constexpr std::uint32_t kNone = ~std::uint32_t{0};

// A byte range of a tier's arena, given to one piece of data for an interval of the list: from the first
// operation that accesses it to the last. Ranges of slots whose intervals are disjoint may overlap.
// `resident` slots hold their data before the first and after the last operation: nothing else may overlap
// them. Carried slots take a chunk's state across the border of two programs: `in` holds it from before the
// first operation of the list to the last that accesses it, `out` from the first that accesses it to after
// the list, for the `in` slot of the same chunk and place in the next program.
enum class Carry : std::uint8_t { none, in, out };

struct Slot {
  Tier tier = Tier::device;
  Item item = Item::workspace;
  bool resident = false;
  Carry carry = Carry::none;
  std::uint32_t unit = kNone;
  std::uint32_t chunk = kNone;
  std::uint32_t micro_batch = kNone;
  std::uint64_t offset_bytes =
      0;  // device, host: in the arena; nvme: in a virtual space, one range an extent
  std::uint64_t bytes = 0;
};

enum class AccessMode : std::uint8_t { read, write, update };  // update reads and writes

struct Access {
  SlotId slot = 0;
  AccessMode mode = AccessMode::read;
  Role role = Role::none;
  std::uint64_t offset_bytes = 0;  // within the slot
  std::uint64_t bytes = 0;
};

// Order of accesses: what moves data reads accesses[0] and writes accesses[1]; the nvme side is left out
// where there is no store. write_state updates accesses[0]: the store puts its trailer there. fold: [0] the
// summand (read), [1] the sum (written by the first, updated after); a lone access is a sum that arrived in
// place (there is one summand). update: [0] state (update), [1] sum (read), [2] parameters out (write).
// cast_param: [0] state (read), [1] parameters out (write). visit_state: [0] state (read). Compute operations
// go by role.
//
// Collectives are entered by every rank of their group, in one order (the family rule of check_family), and
// go by role too; ranges are of the unit's flat parameter, as RankTable says.
//   all_gather, shard group: `mine` (read): this rank's shard in the piece; `others` (write): the rest of
//     it, one range before and one after, where there is such.
//   all_gather, replicate group: the same within a sum_piece: `mine` is the own part, `others` the rest of
//     the shard.
//   reduce_scatter, world: one round of contributions. `grads` (read): the unit's contribution of this rank,
//     left out where it has none in the round; `received` (write): [contributions of the round][own part],
//     left out where the own part is empty. micro_batch is the round's first contribution. Under
//     Reduction::last it stands in the last round alone with micro_batch 0, and all ranks send their sum.
//   reduce_scatter, shard group (Reduction::hierarchical): the same among the ranks of a replica, with the
//     shard for the own part; left out where none of them has a contribution in the round.
//   reduce_scatter, replicate group (Reduction::hierarchical): `grads`: this replica's group_sum of the
//     shard; `received`: [group_sums of the round][own part].
// accumulate: [0] the contribution (read), [1] the local sum (written by the rank's first, updated after).
// round_sum: [0] the local sum (read), [1] what is exchanged (write). sum_group: [0] what was received
// (read), [1] the group_sum (write); micro_batch is the first contribution in it.
// A fold reads from `received` or a group_sum where there are several ranks; its micro_batch is the summand.
// Where a grad_sum is grad dtype though several summands are folded (replicas), the last fold has a third
// access: [2] the rounded sum (write).
// grad_stats joins the verdicts of all ranks and is on the collective lane where there are several.
struct Op {
  OpKind kind = OpKind::commit;
  Lane lane = Lane::compute;
  bool predicated = false;             // runs its waits but does nothing when no step's update is pending
  RankGroup group = RankGroup::world;  // of collectives
  std::uint32_t unit = kNone;
  std::uint32_t chunk = kNone;
  std::uint32_t micro_batch = kNone;
  std::uint64_t bytes = 0;  // moved on its lane
  double flops = 0;
  std::vector<OpId> waits;  // earlier operations that must have completed, beside those its lane implies
  std::vector<Access> accesses;
};

// Programs run one after another: all of one has completed before the next starts.
//
// train is periodic: some of what a step has begun is pending at its end and is done by the next program,
// which is train, train_commit or drain. What is pending depends on UpdateTime. A program with nothing
// pending (the first step, or the one after a drain) runs with its predicated operations left out, and so
// does one after a dropped step. train_commit also commits the step before, once all of it is in the store.
// drain does what is pending and nothing else; the programs below run only when nothing is pending.
//
// materialize: reads (or initialises) every chunk's state and makes the 16-bit parameters from it. commit:
// writes the states that live in memory and commits. visit: shows every chunk's state to a visitor.
enum class ProgramKind : std::uint8_t { train, train_commit, drain, eval, materialize, commit, visit };
inline constexpr int kProgramKinds = 7;

// When a step's updates run.
enum class UpdateTime : std::uint8_t {
  // The verdict on the whole gradient stands before them (clipping, loss scale): in forward order inside the
  // next program, each unit's forward after its own. Pending: sums (in their homes) and all of the update;
  // carried: states of the first chunks, unchanged, fetched ahead during backward.
  next_forward,
  // No verdict is needed: after the chunk's last fold, in backward order. Pending: write_state of the last
  // chunks updated; carried: their new states.
  backward
};

// In what order the contributions of a step are added up (reduction.h). All but `each` are equal to it, and
// to other numbers of ranks, only to rounding.
enum class Reduction : std::uint8_t {
  each,         // the owner of a chunk folds every contribution, in ascending order (contract C1)
  last,         // a rank adds up its own first; one exchange a step
  grouped,      // the contributions of a round are added up first; then the rounds are folded
  hierarchical  // the contributions of a replica's ranks in a round are added up first; replicas are folded
};

struct StepProgram {
  ProgramKind kind = ProgramKind::train;
  UpdateTime updates = UpdateTime::next_forward;
  std::uint32_t contributions = 1;  // C
  std::uint32_t summands = 1;       // that the owner of a chunk folds: C, or fewer sums of some
  std::vector<Slot> slots;
  std::vector<Op> ops;
  std::array<std::uint64_t, kTiers>
      tier_bytes{};  // budgets the slots were placed in (nvme: the virtual space)
};

// A transfer to a disk.
constexpr bool writes_nvme(OpKind kind) {
  return kind == OpKind::write_state || kind == OpKind::write_param || kind == OpKind::write_gradient ||
         kind == OpKind::write_activation;
}

std::string_view name_of(Tier tier);
std::string_view name_of(Lane lane);
std::string_view name_of(OpKind kind);
std::string_view name_of(Item item);
std::string_view name_of(ProgramKind kind);
std::string_view name_of(Reduction reduction);

constexpr bool completes_in_order(Lane lane) {
  return lane != Lane::nvme && lane != Lane::store;
}

}  // namespace terrace
