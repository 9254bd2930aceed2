// What a rank folds, holds and keeps, recomputed from the chunks' owners. Internal to the checker.
#pragma once

#include <cstdint>
#include <vector>

#include "src/plan/check_rules.h"

namespace terrace::check_rules {

// Elements [begin, end) of a unit's flat parameter.
struct Elements {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t numel() const { return end - begin; }
  bool empty() const { return begin == end; }
};

// Of the rank whose program is checked. Rank = replica * shards + shard; the ranks of one shard hold the
// states of each other's chunks. Wants an input that check_input has nothing against.
class RankView {
 public:
  RankView(const StepProgram& program, const CheckInput& input);

  bool has_ranks() const { return ranks_.ranks > 1; }
  bool is_replicated() const { return ranks_.replicas > 1; }
  // Sums go to the other replicas rounded, and are added up beside their homes.
  bool rounds_sums() const { return is_replicated() && summands_ > 1; }

  bool owns(std::size_t chunk) const { return input_.chunks[chunk].owner == ranks_.rank; }
  bool holds(std::size_t chunk) const {
    return input_.chunks[chunk].owner % ranks_.shards == ranks_.rank % ranks_.shards;
  }
  bool keeps_parameters(std::size_t chunk) const {
    return ranks_.keeps_all_parameters || input_.chunks[chunk].kept_whole || holds(chunk);
  }
  bool contributes(std::uint32_t k) const {
    return k < input_.contributions && k % ranks_.ranks == ranks_.rank;
  }
  std::uint32_t first_of_round(std::uint32_t k) const { return k / ranks_.ranks * ranks_.ranks; }
  // Contributions of the round that begins with `first`.
  std::uint32_t in_round(std::uint32_t first) const;
  // Of them, those of this rank's replica, and the first one.
  std::uint32_t in_replica(std::uint32_t first) const;
  std::uint32_t first_of_replica(std::uint32_t first) const {
    return first + ranks_.rank / ranks_.shards * ranks_.shards;
  }
  std::uint32_t own_contributions() const;

  // In what order contributions are really added up: a sum of single ones is none.
  Reduction order() const { return order_; }
  std::uint32_t summands() const { return summands_; }
  // Of the sum that begins with contribution k.
  std::uint32_t summand_of(std::uint32_t k) const {
    return k / (order_ == Reduction::hierarchical ? ranks_.shards : ranks_.ranks);
  }
  // A unit's collective of the round that begins with contribution k.
  bool exchanges(RankGroup group, std::uint32_t unit, std::uint32_t k) const;
  // Does this rank add up what others sent, beginning with contribution k?
  bool sums_group(std::uint32_t unit, std::uint32_t k) const;

  // Runs of chunks that the rank owns, or whose states it holds; {0, 0} where there are none.
  const Elements& own(std::uint32_t unit) const { return own_[unit]; }
  const Elements& shard(std::uint32_t unit) const { return shard_[unit]; }

  // Is the slot the store's extent of a chunk that another rank writes? Of a chunk's resident slots on nvme
  // the first is the store's, the next this rank's copy.
  bool is_foreign_extent(SlotId slot) const;

 private:
  const StepProgram& program_;
  const CheckInput& input_;
  const CheckRanks& ranks_;
  Reduction order_ = Reduction::each;
  std::uint32_t summands_ = 1;
  std::vector<Elements> own_, shard_;  // [unit]
  std::vector<SlotId> extent_;         // [chunk]
};

// check_ranks.cpp: a mesh, and owners whose chunks lie side by side.
void check_mesh(const CheckInput& input, Findings& findings);

}  // namespace terrace::check_rules
