#include "src/plan/check_ranks.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

namespace terrace::check_rules {
namespace {

void widen(Elements& run, const CheckChunk& chunk) {
  if (run.empty()) run = {chunk.first_numel, chunk.first_numel};
  run.begin = std::min(run.begin, chunk.first_numel);
  run.end = std::max(run.end, chunk.first_numel + chunk.numel);
}

}  // namespace

RankView::RankView(const StepProgram& program, const CheckInput& input)
    : program_(program),
      input_(input),
      ranks_(input.ranks),
      own_(input.model.units.size()),
      shard_(input.model.units.size()),
      extent_(input.chunks.size(), kNone) {
  const std::uint32_t total = input.contributions;
  const auto parts_of = [total](std::uint32_t size) { return (total + size - 1) / size; };
  summands_ = total;
  if (ranks_.reduction == Reduction::last && total > ranks_.ranks) {
    order_ = Reduction::last;
    summands_ = ranks_.ranks;
  } else if (ranks_.reduction == Reduction::grouped && parts_of(ranks_.ranks) < total) {
    order_ = Reduction::grouped;
    summands_ = parts_of(ranks_.ranks);
  } else if (ranks_.reduction == Reduction::hierarchical && parts_of(ranks_.shards) < total) {
    order_ = Reduction::hierarchical;
    summands_ = parts_of(ranks_.shards);
  }
  for (std::size_t c = 0; c < input.chunks.size(); ++c) {
    const CheckChunk& chunk = input.chunks[c];
    if (owns(c)) widen(own_[chunk.unit], chunk);
    if (holds(c)) widen(shard_[chunk.unit], chunk);
  }
  for (SlotId id = 0; id < program.slots.size(); ++id) {
    const Slot& slot = program.slots[id];
    if (slot.resident && slot.item == Item::state_chunk && slot.tier == Tier::nvme &&
        extent_[slot.chunk] == kNone) {
      extent_[slot.chunk] = id;
    }
  }
}

std::uint32_t RankView::in_round(std::uint32_t first) const {
  return std::min(input_.contributions - first, ranks_.ranks);
}

std::uint32_t RankView::in_replica(std::uint32_t first) const {
  const std::uint32_t begin = first_of_replica(first);
  const std::uint32_t end = std::min(begin + ranks_.shards, first + in_round(first));
  return end > begin ? end - begin : 0;
}

std::uint32_t RankView::own_contributions() const {
  std::uint32_t count = 0;
  for (std::uint32_t k = ranks_.rank; k < input_.contributions; k += ranks_.ranks) ++count;
  return count;
}

bool RankView::exchanges(RankGroup group, std::uint32_t unit, std::uint32_t k) const {
  if (!has_ranks() || first_of_round(k) != k) return false;
  switch (group) {
    case RankGroup::world:
      return order_ == Reduction::last ? k == 0 : order_ != Reduction::hierarchical;
    case RankGroup::shard:
      return order_ == Reduction::hierarchical && in_replica(k) > 0;
    case RankGroup::replicate:
      return order_ == Reduction::hierarchical && !shard(unit).empty();
  }
  return false;
}

bool RankView::sums_group(std::uint32_t unit, std::uint32_t k) const {
  const std::uint32_t first = first_of_round(k);
  if (order_ == Reduction::grouped) return k == first && !own(unit).empty();
  return order_ == Reduction::hierarchical && k == first_of_replica(first) && in_replica(first) > 0 &&
         !shard(unit).empty();
}

bool RankView::is_foreign_extent(SlotId slot) const {
  const Slot& s = program_.slots[slot];
  return s.resident && s.item == Item::state_chunk && extent_[s.chunk] == slot && !owns(s.chunk);
}

void check_mesh(const CheckInput& input, Findings& findings) {
  const CheckRanks& ranks = input.ranks;
  const auto refuse = [&](std::string text) {
    findings.add(Rule::input, kNone, kNone, kNone, std::move(text));
  };
  if (ranks.shards == 0 || ranks.replicas == 0 ||
      std::uint64_t{ranks.shards} * ranks.replicas != ranks.ranks || ranks.rank >= ranks.ranks) {
    return refuse(fmt::format("rank {} of {}, {} shards in {} replicas: that is no mesh", ranks.rank,
                              ranks.ranks, ranks.shards, ranks.replicas));
  }
  if (ranks.keeps_all_parameters && ranks.replicas > 1) {
    refuse(fmt::format("parameters are kept by every rank of {} replicas", ranks.replicas));
  }
  std::vector<const CheckChunk*> sorted;
  for (const CheckChunk& chunk : input.chunks) {
    sorted.push_back(&chunk);
    if (chunk.owner >= ranks.ranks)
      return refuse(fmt::format("a chunk is owned by rank {} of {}", chunk.owner, ranks.ranks));
  }
  std::sort(sorted.begin(), sorted.end(), [](const CheckChunk* a, const CheckChunk* b) {
    return std::pair(a->unit, a->first_numel) < std::pair(b->unit, b->first_numel);
  });
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i]->unit == sorted[i - 1]->unit && sorted[i]->kept_whole != sorted[i - 1]->kept_whole)
      return refuse(fmt::format("unit {} is kept whole by every rank in part", sorted[i]->unit));
  }
  // A run of one owner (one shard) ends where the next begins: none comes twice in a unit.
  const auto require_runs = [&](std::uint32_t parts, std::string_view what) {
    std::vector<bool> seen;
    for (std::size_t i = 0; i < sorted.size(); ++i) {
      const std::uint32_t part = sorted[i]->owner % parts;
      const bool new_unit = i == 0 || sorted[i - 1]->unit != sorted[i]->unit;
      if (new_unit) seen.assign(parts, false);
      if (!new_unit && sorted[i - 1]->owner % parts == part) continue;
      if (seen[part]) {
        return refuse(fmt::format("the chunks of {} {} do not lie side by side in unit {}", what, part,
                                  sorted[i]->unit));
      }
      seen[part] = true;
    }
  };
  require_runs(ranks.ranks, "rank");
  require_runs(ranks.shards, "shard");
}

}  // namespace terrace::check_rules
