#include "src/collectives/rank_groups.h"

#include <numeric>
#include <utility>
#include <vector>

#include "src/base/fail.h"

namespace terrace {

RankGroups make_rank_groups(std::unique_ptr<Communicator> world, const RankTable& table) {
  const auto rank = static_cast<std::uint32_t>(world->rank());
  check(static_cast<std::uint32_t>(world->size()) == table.ranks(), "a world of {} ranks for a plan of {}",
        world->size(), table.ranks());
  const auto split = [&](const std::vector<std::uint32_t>& ranks, std::string_view name) {
    const std::vector<int> list(ranks.begin(), ranks.end());
    return world->split(list, name);
  };
  RankGroups groups;
  groups.shard = split(table.shard_group(rank), "shard");
  groups.replicate = split(table.replicate_group(rank), "replicate");
  std::vector<std::uint32_t> all(table.ranks());
  std::iota(all.begin(), all.end(), 0u);
  groups.commit = split(all, "commit");
  groups.world = std::move(world);
  return groups;
}

}  // namespace terrace
