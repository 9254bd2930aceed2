// The groups that one rank's step programs meet in.
#pragma once

#include <memory>

#include "src/collectives/communicator.h"
#include "src/plan/rank_table.h"

namespace terrace {

// Each is used by one lane alone: world, shard and replicate by the collective lane, commit by the commit
// lane.
struct RankGroups {
  std::unique_ptr<Communicator> world;
  std::unique_ptr<Communicator> shard;      // the ranks of this rank's replica
  std::unique_ptr<Communicator> replicate;  // the ranks that hold this rank's shard
  std::unique_ptr<Communicator> commit;     // all
};

// Splits `world`, which every rank of it does at once. Throws as Communicator does.
RankGroups make_rank_groups(std::unique_ptr<Communicator> world, const RankTable& table);

}  // namespace terrace
