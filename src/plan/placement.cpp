#include "src/plan/placement.h"

#include <algorithm>

#include "src/base/fail.h"

namespace terrace {

std::vector<Tier> spread(const TierShares& shares, const std::vector<std::uint64_t>& item_bytes) {
  std::array<double, kTiers> given{};
  double total = 0;
  std::vector<Tier> tiers;
  for (const std::uint64_t bytes : item_bytes) {
    total += static_cast<double>(bytes);
    int best = -1;
    double best_lack = 0;
    for (int tier = 0; tier < kTiers; ++tier) {
      if (shares[tier] <= 0) continue;
      const double lack = shares[tier] * total - given[tier];
      if (best < 0 || lack > best_lack) {
        best = tier;
        best_lack = lack;
      }
    }
    check(best >= 0, "no tier has a share");
    given[best] += static_cast<double>(bytes);
    tiers.push_back(static_cast<Tier>(best));
  }
  return tiers;
}

namespace {

class Layout {
 public:
  explicit Layout(Residents& residents) : residents_(residents) {}

  SlotId add(Tier tier, Item item, std::uint32_t unit, std::uint32_t chunk, std::uint64_t bytes,
             bool scratch) {
    Slot slot;
    slot.tier = tier;
    slot.item = item;
    slot.resident = true;
    slot.unit = unit;
    slot.chunk = chunk;
    slot.bytes = bytes;
    std::uint64_t& used = residents_.bytes[static_cast<std::size_t>(tier)];
    slot.offset_bytes = used;
    used += round_up(bytes, 4096);
    residents_.slots.push_back(slot);
    residents_.scratch_extent.push_back(kNone);
    if (tier == Tier::nvme && scratch) {
      residents_.scratch_extent.back() = static_cast<std::uint32_t>(residents_.scratch_bytes.size());
      residents_.scratch_bytes.push_back(bytes);
    }
    return static_cast<SlotId>(residents_.slots.size() - 1);
  }

 private:
  Residents& residents_;
};

}  // namespace

Residents lay_out_residents(const ModelShape& model, const std::vector<Chunk>& chunks,
                            const Placement& placement, const RankTable& ranks, std::uint32_t rank,
                            std::uint32_t contributions, bool has_store) {
  Residents residents;
  Layout layout(residents);
  const std::uint64_t param_bytes = dtype_bytes(model.param_dtype);
  const GradientSums sums(ranks.shape(), contributions);
  const std::uint64_t sum_bytes = dtype_bytes(sums.sum_dtype(model));

  // A unit whose parameters every rank keeps whole, all of them on the device, needs no gathered piece.
  std::vector<bool> whole;
  for (std::uint32_t u = 0; u < model.units.size(); ++u)
    whole.push_back(ranks.shape().shard_size() == 1 || ranks.keeps_whole(u));
  for (std::uint32_t c = 0; c < chunks.size(); ++c) {
    if (placement.parameters[c] != Tier::device) whole[chunks[c].unit] = false;
  }
  for (std::uint32_t u = 0; u < model.units.size(); ++u) {
    const std::uint64_t bytes = model.units[u].padded_numel() * param_bytes;
    const bool resident = whole[u] && bytes > 0;
    residents.piece_home.push_back(resident ? layout.add(Tier::device, Item::piece, u, kNone, bytes, false)
                                            : kNone);
  }
  const bool sums_own = Summands(ranks.shape(), contributions).order() == Reduction::last;
  std::vector<bool> trains(model.units.size(), false);
  for (const Chunk& chunk : chunks) {
    if (!chunk.master_only) trains[chunk.unit] = true;
  }
  for (std::uint32_t u = 0; u < model.units.size(); ++u) {
    const std::uint64_t bytes = model.units[u].padded_numel() * sizeof(float);
    residents.local_sum_home.push_back(
        sums_own && trains[u] ? layout.add(Tier::device, Item::local_sum, u, kNone, bytes, false) : kNone);
  }
  for (std::uint32_t c = 0; c < chunks.size(); ++c) {
    const Chunk& chunk = chunks[c];
    const bool own = ranks.owner(c) == rank;
    const bool held = ranks.holds(rank, c);
    const auto home = [&](bool wanted, Tier tier, Item item, std::uint64_t bytes, bool scratch) {
      return wanted ? layout.add(tier, item, chunk.unit, c, bytes, scratch) : kNone;
    };
    const bool parameters = ranks.keeps_parameters(rank, c) && residents.piece_home[chunk.unit] == kNone;
    residents.param_home.push_back(
        home(parameters, placement.parameters[c], Item::param_chunk, chunk.numel * param_bytes, true));
    const Tier gradient = placement.gradients[c];
    residents.grad_home.push_back(
        home(held && !chunk.master_only, gradient, Item::grad_sum, chunk.numel * sum_bytes, true));
    residents.accumulator_home.push_back(home(own && !chunk.master_only && sums.separate_accumulator(),
                                              gradient, Item::accumulator, chunk.numel * sizeof(float),
                                              true));
    const Tier state = placement.optimizer_state[c];
    check(state != Tier::nvme || has_store, "optimizer state on nvme without a store");
    const std::uint64_t state_bytes = state_slot_bytes(chunk);
    residents.state_home.push_back(
        home(held && state != Tier::nvme, state, Item::state_chunk, state_bytes, false));
    residents.store_extent.push_back(
        home(held && has_store, Tier::nvme, Item::state_chunk, state_bytes, false));
    residents.state_copy.push_back(
        home(held && !own && state == Tier::nvme, Tier::nvme, Item::state_chunk, state_bytes, true));
    if (own && has_store) residents.own_store_bytes += round_up(state_bytes, 4096);
  }
  for (std::uint32_t u = 0; u < model.units.size(); ++u) {
    // The last activation is used at once: it stays on the device.
    const bool offloaded = u + 2 < model.units.size() && model.units[u].output_bytes > 0 &&
                           placement.activations[u] != Tier::device;
    residents.activation_home.push_back(offloaded ? layout.add(placement.activations[u], Item::activation, u,
                                                               kNone, model.units[u].output_bytes, true)
                                                  : kNone);
  }
  for (const std::uint64_t bytes : residents.scratch_bytes)
    residents.scratch_total_bytes += round_up(bytes, 4096);
  return residents;
}

}  // namespace terrace
