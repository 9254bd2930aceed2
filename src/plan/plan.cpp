#include "src/plan/plan.h"

#include <algorithm>

#include "src/base/fail.h"
#include "src/plan/footprint.h"

namespace terrace {
namespace {

constexpr auto kDevice = static_cast<std::size_t>(Tier::device);
constexpr auto kHost = static_cast<std::size_t>(Tier::host);
constexpr auto kNvme = static_cast<std::size_t>(Tier::nvme);

// A class of data as a list of items, each with a tier.
struct DataClass {
  const char* name;
  std::vector<Tier> Placement::*tiers;
  std::vector<std::uint64_t> item_bytes;
  std::optional<TierShares> wanted;
};

class Planner {
 public:
  explicit Planner(const PlanRequest& request) : request_(request) {
    const std::uint32_t cut_ranks = request.cut_ranks > 0 ? request.cut_ranks : request.ranks.ranks;
    plan_.chunks = cut_chunks(request.model, request.chunk_numel, cut_ranks);
    plan_.ranks = RankTable(request.ranks, plan_.chunks, request.model.units.size(),
                            small_units(request.model, request.persist_below_numel));
    list_classes();
    check_request();
    list_all_bytes();
  }

  std::vector<Plan> run() {
    start_lowest();
    choose_automatic();
    return finish();
  }

 private:
  bool has_nvme() const { return request_.nvme_tier; }
  std::uint64_t ranks() const { return request_.ranks.ranks; }
  std::uint64_t sum_bytes() const {
    const GradientSums sums(request_.ranks, request_.contributions);
    return dtype_bytes(sums.sum_dtype(request_.model));
  }

  void list_classes() {
    const ModelShape& model = request_.model;
    std::vector<std::uint64_t> params, grads, states, activations;
    for (const Chunk& chunk : plan_.chunks) {
      params.push_back(chunk.numel * dtype_bytes(model.param_dtype));
      grads.push_back(chunk.master_only ? 0 : chunk.numel * sum_bytes());
      states.push_back(state_slot_bytes(chunk));
    }
    for (const UnitShape& unit : model.units) activations.push_back(unit.output_bytes);
    // In the order of traffic saved a byte of host memory: 2C+1 a byte of parameters, 2C of activations, 2 or
    // 2C of sums, 2 of states.
    classes_ = {{"parameters", &Placement::parameters, params, request_.parameters},
                {"activations", &Placement::activations, activations, request_.activations},
                {"gradients", &Placement::gradients, grads, request_.gradients},
                {"optimizer_state", &Placement::optimizer_state, states, request_.optimizer_state}};
  }

  void check_request() const {
    if (request_.model.units.size() < 2) fail(ErrorCode::invalid_argument, "a model has at least two units");
    if (request_.contributions == 0)
      fail(ErrorCode::invalid_argument, "micro_batches is 0; wanted at least 1");
    // Every operation of a step is listed: a list that would not fit in memory is refused before it is made.
    constexpr std::uint64_t kMostOperations = 4'000'000;
    const std::uint64_t operations =
        10 * (plan_.chunks.size() + request_.model.units.size()) * std::uint64_t{request_.contributions};
    if (operations > kMostOperations) {
      fail(ErrorCode::invalid_argument,
           "{} chunks and {} contributions make a step of about {} operations; at most {} are planned: raise "
           "placement.chunk_numel or lower train.micro_batches",
           plan_.chunks.size(), request_.contributions, operations, kMostOperations);
    }
    for (const DataClass& data : classes_) {
      if (!data.wanted) continue;
      if ((*data.wanted)[kNvme] > 0 && !has_nvme()) {
        fail(ErrorCode::invalid_argument, "placement.{} uses nvme, but tiers.nvme names no path", data.name);
      }
    }
    if (request_.optimizer_state && (*request_.optimizer_state)[kNvme] > 0 && !request_.has_store) {
      fail(ErrorCode::invalid_argument, "placement.optimizer_state uses nvme, but store.path is not set");
    }
  }

  // The lowest tier for every class that is left to the planner.
  void start_lowest() {
    for (const DataClass& data : classes_) {
      TierShares shares{};
      const bool state = data.tiers == &Placement::optimizer_state;
      shares[has_nvme() && (!state || request_.has_store) ? kNvme : kHost] = 1;
      plan_.placement.*data.tiers = spread(data.wanted.value_or(shares), data.item_bytes);
    }
    plan_.placement.recompute.assign(request_.model.units.size(), request_.recompute != Recompute::never);
  }

  CompileInput input(std::uint32_t rank) const {
    return {&request_.model,        &plan_.chunks,    &plan_.placement, &residents_[rank], &plan_.ranks, rank,
            request_.contributions, request_.updates, request_.ahead};
  }

  std::vector<ProgramKind> kinds() const {
    std::vector<ProgramKind> kinds{ProgramKind::train, ProgramKind::drain, ProgramKind::eval,
                                   ProgramKind::materialize, ProgramKind::visit};
    if (request_.has_store && request_.two_extents) {
      kinds.push_back(ProgramKind::train_commit);
      kinds.push_back(ProgramKind::commit);
    }
    return kinds;
  }

  // Homes, and the least pools that do for every rank, of the current placement.
  void measure() {
    residents_.clear();
    least_ = {};
    for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
      residents_.push_back(lay_out_residents(request_.model, plan_.chunks, plan_.placement, plan_.ranks, rank,
                                             request_.contributions, request_.has_store));
    }
    for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
      for (const ProgramKind kind : kinds()) {
        const PoolBytes measured = measure_pools(input(rank), kind);
        for (int p = 0; p < kPools; ++p) least_[p] = std::max(least_[p], measured[p]);
      }
    }
  }

  // What is worth having of a pool: the next unit's piece while one is used; a deep queue of chunks to the
  // disk; never more than all there is of a kind.
  std::uint64_t room_of(Pool pool, int level) const {
    static constexpr std::array<std::array<int, kPools>, 3> kCopies{{{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
                                                                     {1, 2, 2, 1, 2, 1, 3, 3, 3, 4, 2},
                                                                     {1, 2, 2, 1, 3, 1, 8, 4, 6, 8, 4}}};
    const auto p = static_cast<std::size_t>(pool);
    std::uint64_t bytes = least_[p] * static_cast<std::uint64_t>(kCopies[level][p]);
    if (pool == Pool::piece && level > 0) {
      // From other ranks one more, so that the link need not wait for the head's long backward.
      const RankShape& shape = request_.ranks;
      const bool gathers = shape.shard_size() > 1 && !shape.keeps_all_parameters();
      bytes += (gathers && level > 1 ? 2 : 1) * largest_block_bytes_;
    }
    const auto all = all_bytes_[p];
    return all == 0 ? bytes : std::max(least_[p], std::min(bytes, all));
  }

  PoolBytes pools_at(const std::array<int, kPools>& levels) const {
    PoolBytes pools{};
    for (int p = 0; p < kPools; ++p) pools[p] = room_of(static_cast<Pool>(p), levels[p]);
    return pools;
  }

  // All there is of the kinds of data that pools hold.
  void list_all_bytes() {
    const auto add = [&](Pool pool, std::uint64_t bytes) {
      all_bytes_[static_cast<std::size_t>(pool)] += round_up(bytes, 4096);
    };
    const std::uint64_t param_bytes = dtype_bytes(request_.model.param_dtype);
    for (const Chunk& chunk : plan_.chunks) {
      add(Pool::piece, chunk.numel * param_bytes);
      add(Pool::param_staging, chunk.numel * param_bytes);
      add(Pool::contribution, chunk.numel * dtype_bytes(request_.model.grad_dtype));
      add(Pool::grad_staging, chunk.numel * dtype_bytes(request_.model.grad_dtype));
      add(Pool::sum_staging, chunk.numel * sizeof(float));
      add(Pool::state_staging, state_slot_bytes(chunk));
    }
    for (std::size_t u = 1; u + 1 < request_.model.units.size(); ++u) {
      largest_block_bytes_ =
          std::max(largest_block_bytes_, request_.model.units[u].padded_numel() * param_bytes);
    }
  }

  bool fits_in_budget(const PoolBytes& pools) const {
    const auto bytes = footprint_.bytes(pools);
    for (int tier = 0; tier < kTiers; ++tier) {
      if (tier == static_cast<int>(Tier::nvme) && ignore_nvme_) continue;
      if (bytes[tier] > request_.budget_bytes[tier]) return false;
    }
    return true;
  }

  bool fits() {
    measure();
    return fits_in_budget(pools_at(levels_));
  }

  // The most room to fetch ahead that fits, pool by pool, what saves most time first.
  void raise_levels() {
    static constexpr std::array<Pool, 9> kOrder{
        Pool::state_staging,     Pool::piece,       Pool::contribution, Pool::received,
        Pool::param_staging,     Pool::sum_staging, Pool::grad_staging, Pool::fetched_activation,
        Pool::activation_staging};
    for (int level = 1; level <= request_.slack; ++level) {
      for (const Pool pool : kOrder) {
        auto levels = levels_;
        levels[static_cast<std::size_t>(pool)] = level;
        if (fits_in_budget(pools_at(levels))) levels_ = levels;
      }
    }
  }

  // Moves the largest number of items of one automatic class, first in the list first, to a faster tier such
  // that all fits.
  void promote(const DataClass& data, Tier to) {
    std::vector<Tier>& tiers = plan_.placement.*data.tiers;
    const std::vector<Tier> before = tiers;
    const auto apply = [&](std::size_t count) {
      tiers = before;
      for (std::size_t i = 0; i < count; ++i) tiers[i] = std::min(tiers[i], to);
    };
    search(tiers.size(), apply);
  }

  // The largest count in [0, limit] for which apply(count) fits; leaves that applied.
  template <typename Apply>
  void search(std::size_t limit, const Apply& apply) {
    apply(limit);
    if (fits()) return;
    std::size_t low = 0, high = limit;  // low fits, high does not
    while (high - low > 1) {
      const std::size_t middle = low + (high - low) / 2;
      apply(middle);
      (fits() ? low : high) = middle;
    }
    apply(low);
  }

  void choose_automatic() {
    if (!fits()) {
      if (!has_nvme()) return;
      // Perhaps only the disk is too small: spare it as far as the host has room.
      ignore_nvme_ = true;
      for (const DataClass& data : classes_) {
        if (!data.wanted) promote(data, Tier::host);
      }
      ignore_nvme_ = false;
      if (!fits()) return;
    }
    raise_levels();
    for (const DataClass& data : classes_) {
      if (!data.wanted) promote(data, Tier::host);
    }
    // On the device: activations first (each crosses twice a micro-batch), then what spares a recomputation,
    // then parameters (each crosses twice a micro-batch too, but stands beside a gathered piece anyway).
    const DataClass& activations = classes_[1];
    if (!activations.wanted) promote(activations, Tier::device);
    if (request_.recompute == Recompute::automatic) {
      const std::size_t units = request_.model.units.size();
      // The last blocks first: their saved values wait for the shortest time.
      search(units, [&](std::size_t kept) {
        for (std::size_t u = 0; u < units; ++u) plan_.placement.recompute[u] = u < units - kept;
      });
    }
    if (!classes_[0].wanted) promote(classes_[0], Tier::device);
  }

  // What the host budget leaves holds more states across the border of two steps.
  void widen_state_slots() {
    if (request_.slack < 2 || levels_[static_cast<std::size_t>(Pool::state_staging)] < 2) return;
    std::uint64_t on_disk = 0;  // of the rank that has most
    for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
      std::uint64_t sum = 0;
      for (std::uint32_t c = 0; c < plan_.chunks.size(); ++c) {
        const bool moves = !plan_.chunks[c].master_only;
        if (moves && plan_.placement.optimizer_state[c] == Tier::nvme && plan_.ranks.holds(rank, c))
          sum += round_up(state_slot_bytes(plan_.chunks[c]), 4096);
      }
      on_disk = std::max(on_disk, sum);
    }
    std::uint64_t& bytes = plan_.pools[static_cast<std::size_t>(Pool::state_staging)];
    const std::uint64_t used = footprint_.bytes(plan_.pools)[kHost];
    const std::uint64_t left = (request_.budget_bytes[kHost] - used) / ranks() & ~std::uint64_t{4095};
    if (on_disk > bytes) bytes += std::min(left, on_disk - bytes);
  }

  std::vector<Plan> finish() {
    plan_.fits = fits();
    plan_.updates = request_.updates;
    plan_.pools = pools_at(levels_);
    if (plan_.fits) widen_state_slots();
    plan_.ledger = footprint_.ledger(plan_.pools);
    if (!plan_.fits) plan_.least_bytes = footprint_.bytes(least_);
    std::vector<Plan> plans;
    for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
      plans.push_back(plan_);
      Plan& plan = plans.back();
      plan.rank = rank;
      plan.residents = residents_[rank];
      plan.arena_bytes = {plan.residents.bytes[kDevice] + pool_bytes(plan.pools, Tier::device),
                          plan.residents.bytes[kHost] + pool_bytes(plan.pools, Tier::host)};
    }
    if (!plan_.fits) return plans;
    std::vector<CompileInput> inputs;
    for (std::uint32_t rank = 0; rank < ranks(); ++rank) inputs.push_back(input(rank));
    auto programs = compile(inputs, kinds(), plan_.pools);
    for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
      plans[rank].programs.resize(kProgramKinds);
      for (StepProgram& program : programs[rank]) {
        const auto kind = static_cast<std::size_t>(program.kind);
        plans[rank].programs[kind] = std::move(program);
      }
    }
    return plans;
  }

  const PlanRequest& request_;
  Plan plan_;                         // what all ranks' have in common
  std::vector<Residents> residents_;  // [rank], of the current placement
  const Footprint footprint_{request_, plan_, residents_};
  std::vector<DataClass> classes_;
  PoolBytes least_{};                 // of the current placement
  std::array<int, kPools> levels_{};  // of room to fetch ahead
  PoolBytes all_bytes_{};             // all there is of what a pool holds; 0: not known
  std::uint64_t largest_block_bytes_ = 0;
  bool ignore_nvme_ = false;  // while the host is filled to spare the disk
};

}  // namespace

const StepProgram& Plan::program(ProgramKind kind) const {
  check(has(kind), "the plan has no {} program", name_of(kind));
  return programs[static_cast<std::size_t>(kind)];
}

bool Plan::has(ProgramKind kind) const {
  return programs.size() > static_cast<std::size_t>(kind) &&
         !programs[static_cast<std::size_t>(kind)].ops.empty();
}

std::vector<Plan> make_plans(const PlanRequest& request) {
  return Planner(request).run();
}

Plan make_plan(const PlanRequest& request) {
  return std::move(make_plans(request).front());
}

std::array<std::uint64_t, kLanes> lane_bytes(const StepProgram& program) {
  std::array<std::uint64_t, kLanes> bytes{};
  for (const Op& op : program.ops) bytes[static_cast<std::size_t>(op.lane)] += op.bytes;
  return bytes;
}

}  // namespace terrace
