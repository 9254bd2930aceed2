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
