#include "src/plan/rank_table.h"

#include <algorithm>
#include <utility>

#include "src/base/fail.h"

namespace terrace {

std::vector<bool> small_units(const ModelShape& model, std::uint64_t below_numel) {
  std::vector<bool> small;
  for (const UnitShape& unit : model.units) {
    small.push_back(below_numel > 0 &&
                    std::all_of(unit.tensors.begin(), unit.tensors.end(),
                                [&](const TensorShape& tensor) { return tensor.numel < below_numel; }));
  }
  return small;
}

RankTable::RankTable(const RankShape& shape, const std::vector<Chunk>& chunks, std::size_t units,
                     std::vector<bool> kept_units)
    : shape_(shape), kept_units_(std::move(kept_units)) {
  kept_units_.resize(units);
  const std::uint32_t n = shape.ranks;
  if (n == 0 || shape.replicas == 0 || n % shape.replicas != 0) {
    fail(ErrorCode::invalid_argument,
         "{} ranks in {} replicas: wanted a number of replicas that divides the ranks", n, shape.replicas);
  }
  if (shape.replicas > 1 && shape.stage != Stage::parameters) {
    fail(ErrorCode::invalid_argument, "{} replicas under stage {}: only stage 3 is sharded within replicas",
         shape.replicas, static_cast<int>(shape.stage));
  }
  const bool has_order = shape.reduction == Reduction::last           ? shape.stage <= Stage::optimizer
                         : shape.reduction == Reduction::hierarchical ? shape.replicas > 1
                                                                      : true;
  if (!has_order) {
    fail(ErrorCode::invalid_argument, "reduction '{}' under stage {} in {} replicas: wanted {}",
         name_of(shape.reduction), static_cast<int>(shape.stage), shape.replicas,
         shape.reduction == Reduction::last ? "stage 0 or 1" : "replicas");
  }
  std::vector<std::vector<std::uint32_t>> of_unit(units);
  for (std::uint32_t c = 0; c < chunks.size(); ++c) {
    of_unit[chunks[c].unit].push_back(c);
    units_.push_back(chunks[c].unit);
  }
  owners_.resize(chunks.size());
  for (std::uint32_t u = 0; u < units; ++u) {
    const std::uint64_t count = of_unit[u].size();
    for (std::uint32_t part = 0; part <= n; ++part) {
      const std::uint64_t first = part * count / n;
      if (count == 0) {
        borders_.push_back(0);
      } else if (first == count) {
        borders_.push_back(chunks[of_unit[u].back()].begin + chunks[of_unit[u].back()].numel);
      } else {
        borders_.push_back(chunks[of_unit[u][first]].begin);
      }
      if (part == n) break;
      for (std::uint64_t i = first; i < (part + 1) * count / n; ++i)
        owners_[of_unit[u][i]] = rank_of(u, part);
    }
  }
}

std::uint32_t RankTable::part_of(std::uint32_t unit, std::uint32_t rank) const {
  const std::uint32_t s = shape_.shard_size(), r = shape_.replicate_size();
  const std::uint32_t shard = (rank % s + unit) % s;
  const std::uint32_t replica = (rank / s + unit) % r;
  return shard * r + replica;
}

std::uint32_t RankTable::rank_of(std::uint32_t unit, std::uint32_t part) const {
  const std::uint32_t s = shape_.shard_size(), r = shape_.replicate_size();
  const std::uint32_t shard = (part / r + s - unit % s) % s;
  const std::uint32_t replica = (part % r + r - unit % r) % r;
  return replica * s + shard;
}

bool RankTable::holds(std::uint32_t rank, std::uint32_t chunk) const {
  const std::uint32_t s = shape_.shard_size();
  return owners_[chunk] % s == rank % s;
}

NumelRange RankTable::parts(std::uint32_t unit, std::uint32_t first, std::uint32_t count) const {
  const std::size_t base = std::size_t{unit} * (shape_.ranks + 1);
  return {borders_[base + first], borders_[base + first + count]};
}

NumelRange RankTable::own_range(std::uint32_t unit, std::uint32_t rank) const {
  return parts(unit, part_of(unit, rank), 1);
}

NumelRange RankTable::shard_range(std::uint32_t unit, std::uint32_t rank) const {
  const std::uint32_t r = shape_.replicate_size();
  return parts(unit, part_of(unit, rank) / r * r, r);
}

std::vector<std::uint32_t> RankTable::shard_group(std::uint32_t rank) const {
  const std::uint32_t s = shape_.shard_size();
  std::vector<std::uint32_t> group;
  for (std::uint32_t shard = 0; shard < s; ++shard) group.push_back(rank / s * s + shard);
  return group;
}

std::vector<std::uint32_t> RankTable::replicate_group(std::uint32_t rank) const {
  const std::uint32_t s = shape_.shard_size();
  std::vector<std::uint32_t> group;
  for (std::uint32_t r = 0; r < shape_.replicate_size(); ++r) group.push_back(r * s + rank % s);
  return group;
}

}  // namespace terrace
