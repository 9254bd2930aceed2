// What is folded under each order of reduction, against lists written out contribution by contribution.
#include "src/plan/reduction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace terrace {
namespace {

// The contributions in each summand.
using Sums = std::vector<std::vector<std::uint32_t>>;

Sums sums_of(const RankShape& shape, std::uint32_t contributions) {
  Sums sums;
  const std::uint32_t n = shape.ranks, s = shape.shard_size();
  for (std::uint32_t k = 0; k < contributions; ++k) {
    const std::uint32_t at = shape.reduction == Reduction::last           ? k % n
                             : shape.reduction == Reduction::grouped      ? k / n
                             : shape.reduction == Reduction::hierarchical ? k / s
                                                                          : k;
    if (sums.size() <= at) sums.resize(at + 1);
    sums[at].push_back(k);
  }
  return sums;
}

TEST(Summands, CountAndTakeTurnsAsTheContributionsDo) {
  for (std::uint32_t n = 1; n <= 8; ++n) {
    for (std::uint32_t replicas = 1; replicas <= n; ++replicas) {
      if (n % replicas != 0) continue;
      for (const Reduction reduction :
           {Reduction::each, Reduction::last, Reduction::grouped, Reduction::hierarchical}) {
        const RankShape shape{Stage::parameters, n, replicas, reduction};
        const std::uint32_t shards = n / replicas;
        for (std::uint32_t contributions = 1; contributions <= 3 * n + 1; ++contributions) {
          SCOPED_TRACE(testing::Message() << n << " ranks, " << replicas << " replicas, "
                                          << name_of(reduction) << ", C " << contributions);
          const Summands summands(shape, contributions);
          const Sums sums = sums_of(shape, contributions);
          bool adds = false;
          for (const auto& sum : sums) adds = adds || sum.size() > 1;
          EXPECT_EQ(summands.order(), adds ? reduction : Reduction::each);
          EXPECT_EQ(summands.count(), sums.size());
          EXPECT_EQ(summands.rounds(), (contributions + n - 1) / n);
          // Every summand is folded once, in ascending order, not before its last contribution is there.
          std::uint32_t next = 0;
          for (std::uint32_t round = 0; round < summands.rounds(); ++round) {
            for (std::uint32_t i = summands.first(round); i < summands.end(round); ++i, ++next) {
              EXPECT_EQ(i, next);
              EXPECT_LE(sums[i].back() / n, round);
            }
            for (std::uint32_t rank = 0; rank < n && summands.order() != Reduction::last; ++rank) {
              std::uint32_t world = 0, replica = 0;
              std::vector<bool> of_replica(replicas, false);
              for (std::uint32_t k = round * n; k < std::min((round + 1) * n, contributions); ++k) {
                ++world;
                of_replica[k % n / shards] = true;
                if (k % n / shards == rank / shards) ++replica;
              }
              EXPECT_EQ(summands.senders(RankGroup::world, rank, round), world);
              EXPECT_EQ(summands.senders(RankGroup::shard, rank, round), replica);
              if (summands.order() != Reduction::hierarchical) continue;
              EXPECT_EQ(summands.senders(RankGroup::replicate, rank, round),
                        std::count(of_replica.begin(), of_replica.end(), true));
            }
          }
          EXPECT_EQ(next, summands.count());
        }
      }
    }
  }
}

}  // namespace
}  // namespace terrace
