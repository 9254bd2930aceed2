#include "src/engine/host_overhead.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "src/base/aligned_memory.h"
#include "src/base/units.h"
#include "src/engine/plan_request.h"

namespace terrace {
namespace {

// What malloc takes for a block.
std::uint64_t heap_bytes(std::uint64_t bytes) {
  return bytes == 0 ? 0 : std::max<std::uint64_t>(round_up(bytes + 8, 16), 32);
}

// Shares of a class, the costliest where the planner chooses.
TierShares worst(const PlacementShares& shares, bool nvme) {
  if (!shares.automatic) return {shares.device, shares.host, shares.nvme};
  return nvme ? TierShares{0, 0, 1} : TierShares{0, 1, 0};
}

double weigh(const TierShares& shares, double device, double host, double nvme) {
  // A unit whose chunks lie on several tiers is treated as a whole, so a share of the device saves nothing.
  if (shares[0] < 1) device = std::max(device, host);
  return shares[0] * device + shares[1] * host + shares[2] * nvme;
}

// The operations of a step and of the programs around it, as many as there can be at these shares.
struct Operations {
  double largest = 0;  // of one program
  double all = 0;
};

// Chunks and units, and those of them that every rank keeps whole though it updates its shard alone.
struct Counts {
  double chunks = 0, units = 0;
  double kept_chunks = 0, kept_units = 0;
};

// Of one rank.
Operations operations_of(const Config& config, const RankShape& ranks, const Counts& counts) {
  const double chunks = counts.chunks, units = counts.units;
  const bool nvme = !config.tiers.nvme.empty();
  const bool commits = !config.store.path.empty() && config.commit.every_steps != 0;
  const TierShares parameters = worst(config.placement.parameters, nvme);
  const TierShares gradients = worst(config.placement.gradients, nvme);
  const TierShares states = worst(config.placement.optimizer_state, nvme && !config.store.path.empty());
  const TierShares activations = worst(config.placement.activations, nvme);
  // Chunks that a rank folds, holds and keeps the parameters of; a unit has parts of up to one chunk more.
  const double n = ranks.ranks;
  const double own = n > 1 ? chunks / n + units : chunks;
  const double held = ranks.shard_size() > 1 ? chunks / ranks.shard_size() + units : chunks;
  const double kept = counts.kept_chunks < chunks ? held + counts.kept_chunks : chunks;
  const double rounds = std::ceil(config.train.micro_batches / n);
  const double gather = weigh(parameters, 0, 1, 2);
  const double collectives = n > 1 ? 2 * units : 0;
  const double sums = ranks.reduction == Reduction::each ? 0 : 2 * units;  // made before the folds
  const double round = kept * 2 * gather + units * (3 + weigh(activations, 0, 2, 4)) + 2 * collectives + sums;
  const double folds = config.train.micro_batches * own * weigh(gradients, 1, 2, 4);
  const double outward = weigh(parameters, 1, 0, 1);
  const double update = held * (1 + weigh(states, 2, 0, 2) + weigh(gradients, 1, 0, 1) + outward);
  // New parameters to the homes of those who did not make them; sums to other replicas.
  const double renewal = counts.kept_chunks * weigh(parameters, 1, 1, 2) + counts.kept_units;
  const double spread = ranks.replicate_size() > 1 ? held * weigh(gradients, 1, 1, 2) + own + units : 0;
  const double in_memory = own * weigh(states, 2, 1, 0);  // written by a commit
  Operations ops;
  ops.largest = rounds * round + folds + update + renewal + spread + (commits ? in_memory : 0) + 2;
  ops.all = (commits ? 2 : 1) * ops.largest + update + renewal;                // train, train_commit, drain
  ops.all += units + kept * gather + collectives;                              // eval
  ops.all += held * (3 + weigh(states, 1, 0, 0) + outward) + renewal;          // materialize
  ops.all += held * (1 + weigh(states, 1, 0, 1)) + (commits ? in_memory : 0);  // visit, commit
  return ops;
}

// What one operation of a program that stands ready takes: itself, its lists, its share of the slots, the
// shortest time it took and its times in the fastest step.
constexpr double kOperationBytes = 280;
// More of the program that runs, or is looked at when the run ends: its event, its times, its transfer.
constexpr double kRunningBytes = 320;
// Each program lists the slots of all residents.
constexpr double kResidentSlots = 4;

}  // namespace

std::uint64_t local_ranks(const Config& config) {
  return config.ranks.per_process > 0 ? config.ranks.per_process : config.ranks.count;
}

std::uint64_t compute_threads(const Config& config) {
  if (config.compute.threads > 0) return config.compute.threads;
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool known = sched_getaffinity(0, sizeof(set), &set) == 0;
  const std::uint64_t cores = std::max<std::uint64_t>(
      1, known ? static_cast<unsigned>(CPU_COUNT(&set)) : std::thread::hardware_concurrency());
  return std::max<std::uint64_t>(1, cores * local_ranks(config) / config.ranks.count);
}

std::uint64_t HostOverhead::total() const {
  std::uint64_t sum = 0;
  for (const LedgerLine& line : lines()) sum += line.bytes;
  return sum;
}

std::vector<LedgerLine> HostOverhead::lines() const {
  std::vector<LedgerLine> lines{{Tier::host, "program and libraries", library_bytes},
                                {Tier::host, "scratch of the compute threads", scratch_bytes},
                                {Tier::host, "tokens and targets of a step", token_bytes},
                                {Tier::host, "compiled step programs", program_bytes},
                                {Tier::host, "tables of chunks, store and I/O", table_bytes},
                                {Tier::host, "arenas, rounded up to huge pages", rounding_bytes}};
  if (copy_bytes > 0) lines.push_back({Tier::host, "copies of parameters, of all ranks", copy_bytes});
  return lines;
}

HostOverhead engine_overhead(const Config& config, const ModelShape& model, std::uint64_t chunk_numel) {
  std::uint64_t chunks = 0, segments = 0, blocks = 0, largest_numel = 0;
  const RankShape ranks = rank_shape(config);
  const std::uint64_t n = local_ranks(config);
  const std::vector<Chunk> table = cut_chunks(model, chunk_numel, ranks.ranks);
  const RankTable holders(ranks, table, model.units.size(),
                          small_units(model, config.ranks.persist_below_numel));
  const auto renews = [&](std::uint32_t unit) { return ranks.ranks > 1 && holders.keeps_whole(unit); };
  Counts counts;
  for (std::uint32_t u = 0; u < model.units.size(); ++u) counts.kept_units += renews(u) ? 1 : 0;
  for (const Chunk& chunk : table) {
    counts.kept_chunks += renews(chunk.unit) ? 1 : 0;
    ++chunks;
    segments += chunk.segments.size();
    blocks += chunk.numel / kBlockNumel;
    largest_numel = std::max(largest_numel, chunk.numel);
  }
  HostOverhead overhead;
  counts.chunks = static_cast<double>(chunks);
  counts.units = static_cast<double>(model.units.size());
  const Operations ops = operations_of(config, ranks, counts);
  const double resident_slots = kResidentSlots * static_cast<double>(chunks + model.units.size());
  overhead.program_bytes =
      n * static_cast<std::uint64_t>(std::ceil(ops.all * kOperationBytes + ops.largest * kRunningBytes +
                                               kProgramKinds * resident_slots * sizeof(Slot)));
  overhead.table_bytes =
      chunks * 4 * kKiB + segments * kKiB + n * blocks * sizeof(double) + config.io.depth * 5 * kKiB + kMiB;
  if (n > 1) overhead.table_bytes += n * (chunks * 512 + segments * sizeof(std::uint64_t) + 64 * kKiB);
  overhead.rounding_bytes = (1 + n) * kHugePageBytes;
  if (ranks.ranks > 1 && config.ranks.own_seeds) {  // what the ranks hold, and the chunk that each draws
    // A rank by itself may hold up to a chunk more of every unit than its share.
    const std::uint64_t numel = blocks * kBlockNumel;
    const std::uint64_t share = numel / ranks.shard_size() + model.units.size() * largest_numel;
    const std::uint64_t held = n == ranks.ranks ? numel * ranks.replicate_size() : n * std::min(numel, share);
    overhead.copy_bytes = (held + n * largest_numel) * sizeof(float);
  }
  return overhead;
}

std::uint64_t program_bytes(const Plan& plan) {
  constexpr std::uint64_t kTimesBytes = 24;
  std::uint64_t sum = 0, operations = 0, most_operations = 0;
  for (const StepProgram& program : plan.programs) {
    sum += heap_bytes(program.slots.size() * sizeof(Slot)) + heap_bytes(program.ops.size() * sizeof(Op)) +
           heap_bytes(program.ops.size() * sizeof(OpId));
    for (const Op& op : program.ops) {
      sum += heap_bytes(op.waits.size() * sizeof(OpId)) + heap_bytes(op.accesses.size() * sizeof(Access));
    }
    operations += program.ops.size();
    most_operations = std::max<std::uint64_t>(most_operations, program.ops.size());
  }
  return sum + operations * kTimesBytes + most_operations * static_cast<std::uint64_t>(kRunningBytes);
}

}  // namespace terrace
