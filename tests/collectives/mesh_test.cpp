#include "src/collectives/mesh.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

TEST(Mesh, ShardAndReplicateGroupsCoverTheWorldAndMeetInOneRank) {
  for (const Mesh mesh : {Mesh{1, 1}, Mesh{1, 4}, Mesh{4, 1}, Mesh{2, 3}, Mesh{3, 2}}) {
    for (int rank = 0; rank < mesh.size(); ++rank) {
      const std::vector<int> shards = mesh.shard_group(rank), replicas = mesh.replicate_group(rank);
      EXPECT_EQ(static_cast<int>(shards.size()), mesh.shards);
      EXPECT_EQ(static_cast<int>(replicas.size()), mesh.replicas);
      EXPECT_EQ(shards[static_cast<std::size_t>(mesh.shard_of(rank))], rank);
      EXPECT_EQ(replicas[static_cast<std::size_t>(mesh.replica_of(rank))], rank);
      for (const int other : shards) {
        EXPECT_EQ(mesh.shard_group(other), shards);
        EXPECT_EQ(mesh.replica_of(other), mesh.replica_of(rank));
      }
      for (const int other : replicas) {
        EXPECT_EQ(mesh.replicate_group(other), replicas);
        EXPECT_EQ(mesh.shard_of(other), mesh.shard_of(rank));
      }
    }
  }
}

TEST(Mesh, AShardGroupHasConsecutiveRanks) {
  const Mesh mesh{.replicas = 2, .shards = 3};
  EXPECT_EQ(mesh.shard_group(4), (std::vector<int>{3, 4, 5}));
  EXPECT_EQ(mesh.replicate_group(4), (std::vector<int>{1, 4}));
}

}  // namespace
}  // namespace terrace
