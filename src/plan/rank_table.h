// Who folds, keeps and gathers what: the mesh of a run, its strategy, and what follows for each chunk. Pure.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "src/plan/chunk_table.h"
#include "src/plan/closed_form.h"
#include "src/plan/program.h"

namespace terrace {

// N ranks under one strategy. A part is a rank's share of a unit: of the N parts every chunk lies in one.
//   the rank that owns a part folds its summands (reduction.h) and writes its states to the store;
//   a shard is R consecutive parts; the R ranks that own them (a replicate group, one of each replica) hold
//   its states and update it each for itself, after an all-gather of the rounded sums among them; the S ranks
//   of a replica (a shard group) hold all shards between them and gather parameters among them.
// N = S * R. Stage 0 is S = 1, stages 1 to 3 are R = 1; under stages 1 and 2 every rank keeps all 16-bit
// parameters nevertheless, and gathers them once a step; under stage 1 it has room for its whole gradient.
// Under stage 3 (hybrid or not) that may be said of some units, which then stay whole on every rank.
struct RankShape {
  Stage stage = Stage::parameters;
  std::uint32_t ranks = 1;
  std::uint32_t replicas = 1;  // under Stage::parameters alone: hybrid sharding where above 1; divides ranks
  Reduction reduction = Reduction::each;

  std::uint32_t replicate_size() const { return stage == Stage::replicated ? ranks : replicas; }  // R
  std::uint32_t shard_size() const { return ranks / replicate_size(); }                           // S
  // Every rank keeps all 16-bit parameters, though it updates its shard alone.
  bool keeps_all_parameters() const { return stage == Stage::optimizer || stage == Stage::gradients; }
  friend bool operator==(const RankShape&, const RankShape&) = default;
};

// Elements [begin, end) of a unit's flat parameter.
struct NumelRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t numel() const { return end - begin; }
  bool empty() const { return begin == end; }
  friend bool operator==(const NumelRange&, const NumelRange&) = default;
};

// [unit]: have all its tensors fewer than `below_numel` elements? With 0 none has, else a unit without
// tensors has too.
std::vector<bool> small_units(const ModelShape& model, std::uint64_t below_numel);

// rank = replica * S + shard, so that a shard group has consecutive ranks. Parts are consecutive runs of a
// unit's chunks, as equal as whole chunks allow (part p of K chunks: [floor(p*K/N), floor((p+1)*K/N))), so
// nothing in a chunk depends on N; which rank owns which part rotates from unit to unit, so that what cannot
// be cut evenly (a unit of fewer chunks than ranks) is spread. Cost of every query: a few operations.
class RankTable {
 public:
  RankTable() = default;
  // kept_units, [unit]: what stays whole on every rank where parameters are sharded; empty = none. Throws
  // invalid_argument when replicas do not divide ranks, or exceed 1 under another stage, and where the stage
  // does not have the order of reduction.
  RankTable(const RankShape& shape, const std::vector<Chunk>& chunks, std::size_t units,
            std::vector<bool> kept_units = {});

  const RankShape& shape() const { return shape_; }
  std::uint32_t ranks() const { return shape_.ranks; }

  std::uint32_t part_of(std::uint32_t unit, std::uint32_t rank) const;
  std::uint32_t rank_of(std::uint32_t unit, std::uint32_t part) const;
  std::uint32_t owner(std::uint32_t chunk) const { return owners_[chunk]; }
  // Does the rank hold the chunk's states (its own, and those of its shard)?
  bool holds(std::uint32_t rank, std::uint32_t chunk) const;
  // Does every rank keep the unit's 16-bit parameters whole between steps, though it updates its shard alone?
  bool keeps_whole(std::uint32_t unit) const {
    return shape_.keeps_all_parameters() || (shape_.shard_size() > 1 && kept_units_[unit]);
  }
  // Does the rank keep the chunk's 16-bit parameters between steps?
  bool keeps_parameters(std::uint32_t rank, std::uint32_t chunk) const {
    return keeps_whole(units_[chunk]) || holds(rank, chunk);
  }
  NumelRange own_range(std::uint32_t unit, std::uint32_t rank) const;
  NumelRange shard_range(std::uint32_t unit, std::uint32_t rank) const;

  // The ranks of a rank's groups, ascending.
  std::vector<std::uint32_t> shard_group(std::uint32_t rank) const;
  std::vector<std::uint32_t> replicate_group(std::uint32_t rank) const;

 private:
  NumelRange parts(std::uint32_t unit, std::uint32_t first, std::uint32_t count) const;

  RankShape shape_;
  std::vector<std::uint64_t> borders_;  // [unit * (N + 1) + part]: first element
  std::vector<std::uint32_t> owners_;   // [chunk]
  std::vector<std::uint32_t> units_;    // [chunk]
  std::vector<bool> kept_units_;        // [unit]
};

}  // namespace terrace
