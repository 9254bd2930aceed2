#include "src/plan/reduction.h"

#include <algorithm>

#include "src/base/units.h"

namespace terrace {
namespace {

// The order that the numbers allow: a sum of one contribution is that contribution.
Reduction effective(const RankShape& shape, std::uint32_t contributions, std::uint32_t rounds) {
  const bool sums = shape.reduction == Reduction::last           ? rounds > 1
                    : shape.reduction == Reduction::grouped      ? shape.ranks > 1 && contributions > 1
                    : shape.reduction == Reduction::hierarchical ? shape.shard_size() > 1 && contributions > 1
                                                                 : false;
  return sums ? shape.reduction : Reduction::each;
}

}  // namespace

Summands::Summands(const RankShape& shape, std::uint32_t contributions)
    : contributions_(contributions),
      ranks_(shape.ranks),
      shards_(shape.shard_size()),
      rounds_(static_cast<std::uint32_t>(div_up(contributions, shape.ranks))) {
  order_ = effective(shape, contributions, rounds_);
  count_ = order_ == Reduction::last           ? ranks_
           : order_ == Reduction::grouped      ? rounds_
           : order_ == Reduction::hierarchical ? static_cast<std::uint32_t>(div_up(contributions, shards_))
                                               : contributions;
}

std::uint32_t Summands::first(std::uint32_t round) const {
  switch (order_) {
    case Reduction::last:
      return 0;
    case Reduction::grouped:
      return round;
    case Reduction::hierarchical:
      return round * (ranks_ / shards_);
    case Reduction::each:
      break;
  }
  return round * ranks_;
}

std::uint32_t Summands::end(std::uint32_t round) const {
  if (round + 1 == rounds_) return count_;
  return order_ == Reduction::last ? 0 : first(round + 1);
}

std::uint32_t Summands::senders(RankGroup group, std::uint32_t rank, std::uint32_t round) const {
  if (order_ == Reduction::last) return ranks_;
  const std::uint32_t left = contributions_ - round * ranks_;
  const std::uint32_t before = rank / shards_ * shards_;  // of the round, those of replicas before this one
  switch (group) {
    case RankGroup::world:
      break;
    case RankGroup::shard:
      return std::min(shards_, left - std::min(left, before));
    case RankGroup::replicate:
      return end(round) - first(round);
  }
  return std::min(ranks_, left);
}

}  // namespace terrace
