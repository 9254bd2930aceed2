// From a placement and the sizes of the pools to the step programs.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "src/plan/placement.h"
#include "src/plan/program.h"

namespace terrace {

// Parts of the arenas from which slots of one kind are given out. What remains of an arena holds the
// residents.
enum class Pool : std::uint8_t {
  piece,               // device: gathered parameters
  contribution,        // device: gradients of one unit and micro-batch; sums on their way between replicas
  received,            // device: what a group sent to the own part in a round, and sums of it
  activation,          // device: activations, their gradients, saved values, a tied use's gradient
  fetched_activation,  // device: activations brought back
  workspace,           // device: one compute operation's
  param_staging,       // host: parameters from or to a tier that is not host
  grad_staging,        // host: summands on their way to the fold
  sum_staging,         // host: sums from or to a tier that is not host
  state_staging,       // host: states from or to a tier that is not host
  activation_staging   // host: activations from or to nvme
};
inline constexpr int kPools = 11;
std::string_view name_of(Pool pool);
Tier tier_of(Pool pool);

using PoolBytes = std::array<std::uint64_t, kPools>;

struct CompileInput {
  const ModelShape* model = nullptr;
  const std::vector<Chunk>* chunks = nullptr;
  const Placement* placement = nullptr;
  const Residents* residents = nullptr;  // of the rank
  const RankTable* ranks = nullptr;
  std::uint32_t rank = 0;
  std::uint32_t contributions = 1;
  UpdateTime updates = UpdateTime::next_forward;
  bool ahead = true;  // fetch before the need arises
};

// The least each pool needs for the program, when nothing is fetched ahead.
PoolBytes measure_pools(const CompileInput& input, ProgramKind kind);

// The programs of every rank of a run, [rank][i] by the order of `kinds`; the inputs differ in rank and
// residents alone. Pools follow the residents in each arena, in order; they have one size on all ranks, since
// what room they leave decides the order of collectives, which must be one. Fetches ahead as far as the pools
// allow, also across the border of two steps (carried slots, the same in all programs); falls back to none
// where that leaves no room for what is needed next. Throws does_not_fit, naming the pool, when a pool is
// smaller than measure_pools says.
std::vector<std::vector<StepProgram>> compile(const std::vector<CompileInput>& inputs,
                                              const std::vector<ProgramKind>& kinds, const PoolBytes& pools);

}  // namespace terrace
