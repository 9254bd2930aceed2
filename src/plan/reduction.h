// What the owner of a chunk folds: the contributions of a step, or sums of some of them. Pure.
#pragma once

#include <cstdint>

#include "src/plan/rank_table.h"

namespace terrace {

// Contribution k is computed by rank k mod N, in round floor(k/N).
//   each: summand k is contribution k, folded in its round.
//   last: summand r is the sum of rank r's contributions; all are folded in the last round.
//   grouped: summand i is the sum of round i, folded in it.
//   hierarchical: summand i is the sum of contributions [i*S, (i+1)*S), one replica's of a round, folded in
//   it.
// Such a sum is added up in fp32 in ascending order and rounded once to the gradient dtype; the fold of the
// summands ascends too. Where every summand would be one contribution, order() is `each`.
class Summands {
 public:
  Summands() = default;
  Summands(const RankShape& shape, std::uint32_t contributions);

  Reduction order() const { return order_; }
  std::uint32_t count() const { return count_; }
  std::uint32_t rounds() const { return rounds_; }  // of contributions
  // Summands [first, end) are folded in the round; none under `last` but in the last round.
  std::uint32_t first(std::uint32_t round) const;
  std::uint32_t end(std::uint32_t round) const;
  // How many ranks of a rank's group have something to send in the round's exchange; they are its first ones.
  std::uint32_t senders(RankGroup group, std::uint32_t rank, std::uint32_t round) const;

 private:
  std::uint32_t contributions_ = 1;
  std::uint32_t ranks_ = 1;
  std::uint32_t shards_ = 1;
  Reduction order_ = Reduction::each;
  std::uint32_t rounds_ = 1;
  std::uint32_t count_ = 1;
};

// What decides where and in which type a rank's gradients are summed.
struct GradientSums {
  std::uint32_t summands = 1;
  bool replicated = false;  // sums go to the other replicas, in grad dtype

  GradientSums(const RankShape& shape, std::uint32_t contributions)
      : summands(Summands(shape, contributions).count()), replicated(shape.replicate_size() > 1) {}

  // The accumulator is fp32 and stands beside the sum.
  bool separate_accumulator() const { return replicated && summands > 1; }
  DType sum_dtype(const ModelShape& model) const {
    return summands > 1 && !replicated ? DType::f32 : model.grad_dtype;
  }
};

}  // namespace terrace
