// The ranks of a run as a grid: R replicas of S shards each.
#pragma once

#include <vector>

namespace terrace {

// rank = replica * shards + shard, so that a shard group (the ranks that hold one copy of the model between
// them) has consecutive ranks, on one node where it fits, and a replicate group (the ranks that hold the same
// shard) takes every S-th. One replica is plain sharding, one shard plain data parallelism.
struct Mesh {
  int replicas = 1;
  int shards = 1;

  int size() const { return replicas * shards; }
  int replica_of(int rank) const { return rank / shards; }
  int shard_of(int rank) const { return rank % shards; }

  // The lists for Communicator::split of the world, in ascending rank.
  std::vector<int> shard_group(int rank) const {
    std::vector<int> ranks;
    for (int s = 0; s < shards; ++s) ranks.push_back(replica_of(rank) * shards + s);
    return ranks;
  }
  std::vector<int> replicate_group(int rank) const {
    std::vector<int> ranks;
    for (int r = 0; r < replicas; ++r) ranks.push_back(r * shards + shard_of(rank));
    return ranks;
  }
};

}  // namespace terrace
