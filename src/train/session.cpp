#include "src/train/session.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>
#include <vector>

#include "src/base/aligned_memory.h"
#include "src/base/fail.h"
#include "src/base/log.h"
#include "src/base/parallel_for.h"
#include "src/base/process_memory.h"
#include "src/base/units.h"
#include "src/model/product_library.h"
#include "src/train/batches.h"
#include "src/train/compare_ranks.h"

namespace terrace {
namespace {

// What two runs on one store must agree on.
nlohmann::ordered_json identity_of(const Config& config) {
  const Config::Model& model = config.model;
  return {{"model.layers", model.layers},
          {"model.width", model.width},
          {"model.heads", model.heads},
          {"model.kv_heads", model.kv_heads == 0 ? model.heads : model.kv_heads},
          {"model.mlp_width", model.mlp_width == 0 ? 4 * model.width : model.mlp_width},
          {"model.vocabulary", model.vocabulary},
          {"model.context", model.context},
          {"model.tied_head", model.tied_head},
          {"model.norm", model.norm},
          {"model.position", model.position},
          {"model.mlp", model.mlp},
          {"model.init_std", model.init_std},
          {"train.seed", config.train.seed}};
}

// What the bits depend on beside it (the family): a difference is allowed, and said.
nlohmann::ordered_json numerics_of(const Config& config) {
  return {{"device", "host"},
          {"precision.compute", config.precision.compute},
          {"precision.grad", dtype_name(grad_dtype(config))},
          {"train.micro_batch", config.train.micro_batch},
          {"train.micro_batches", config.train.micro_batches},
          {"products", product_library()}};
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// `measured_bytes`: what the libraries were seen to hold.
HostOverhead overhead_at_least(HostOverhead overhead, std::uint64_t measured_bytes) {
  if (measured_bytes > overhead.library_bytes + overhead.scratch_bytes) {
    // They take some more once lanes and disks work.
    overhead.library_bytes = round_up(measured_bytes + measured_bytes / 4 + 4 * kMiB, kMiB);
    logger()->info("the libraries hold {} here, more than `terrace plan` expects; the ledger counts {}",
                   format_bytes(measured_bytes), format_bytes(overhead.library_bytes));
  }
  return overhead;
}

// Of this process: a copy of all parameters for each local rank, and one unit of rank 0's in double.
std::uint64_t compared_bytes(const Config& config, const ModelShape& model) {
  std::uint64_t parameters = 0, largest_unit = 0;
  for (const UnitShape& unit : model.units) {
    parameters += unit.numel();
    largest_unit = std::max(largest_unit, unit.numel());
  }
  if (config.ranks.count < 2) {
    fail(ErrorCode::invalid_argument, "comparing ranks: ranks.count = {}; wanted 2 or more",
         config.ranks.count);
  }
  if (parameters > kMostComparedParameters) {
    fail(ErrorCode::invalid_argument,
         "comparing ranks keeps a copy of all parameters for each: the model has {}; wanted at most {}",
         parameters, kMostComparedParameters);
  }
  return local_ranks(config) * parameters * dtype_bytes(model.param_dtype) +
         2 * largest_unit * sizeof(double);
}

EngineModel engine_model(const Config& config, const ModelSpec& spec, bool compares_ranks) {
  EngineModel model;
  model.shape = model_shape(config);
  model.identity = identity_of(config).dump();
  model.numerics = numerics_of(config).dump();
  model.says = "the configuration says";
  model.resume_by = "--resume";
  model.initial = [tensors = unit_tensors(spec), seed = config.train.seed](
                      std::uint32_t unit, std::uint32_t tensor, std::uint64_t begin, std::uint64_t end,
                      float* out) { fill_initial(tensors[unit].tensors[tensor], seed, begin, end, out); };
  if (config.ranks.own_seeds) {
    model.own_initial = [tensors = unit_tensors(spec), seed = config.train.seed](std::uint32_t rank) {
      return [tensors, own_seed = seed + rank](std::uint32_t unit, std::uint32_t tensor, std::uint64_t begin,
                                               std::uint64_t end, float* out) {
        fill_initial(tensors[unit].tensors[tensor], own_seed, begin, end, out);
      };
    };
  }
  const std::uint64_t copy_bytes = compares_ranks ? compared_bytes(config, model.shape) : 0;
  model.overhead = [&config, shape = model.shape, copy_bytes](std::uint64_t chunk_numel) {
    HostOverhead overhead = host_overhead(config, shape, chunk_numel);
    overhead.copy_bytes += copy_bytes;
    return overhead;
  };
  return model;
}

}  // namespace

Session::Session(const Config& config, const SessionOptions& options, bool compares_ranks)
    : spec_(model_spec(config)), contributions_(config.train.micro_batches) {
  set_parallel_threads(static_cast<int>(compute_threads(config)));
  EngineModel model = engine_model(config, spec_, compares_ranks);
  model.measured = [&](const HostOverhead& estimate) {
    return overhead_at_least(estimate, warm_up_executors(config));
  };
  engine_ = std::make_unique<Engine>(config, std::move(model), options);
  if (const auto state = engine_->run_state()) resumed_ = run_state_from_json(*state);
  logger()->info("device {}, matrix products by {}", "host", product_library());
  if (config.ranks.count > 1) {
    const RankShape shape = plan().ranks.shape();
    logger()->info("{} ranks as {}, stage {}: {} shards x {} replicas", shape.ranks,
                   config.ranks.per_process > 0 ? "processes" : "threads", config.ranks.stage,
                   shape.shard_size(), shape.replicate_size());
    const Reduction order = Summands(shape, config.train.micro_batches).order();
    if (order != Reduction::each) {
      logger()->info("gradients are added up '{}': equal to one rank, and to other meshes, only to rounding",
                     name_of(order));
    }
  }
  logger()->info("{} samples a step in {} contributions", effective_batch(config),
                 config.train.micro_batches);
  log_parameter_groups(config, this->model());
  std::vector<Executor*> executors;
  for (const auto& probe : probes_) executors.push_back(probe.get());
  engine_->start(executors);
}

Session::~Session() = default;

std::uint64_t Session::load_step(const DistributedSampler& sampler) {
  std::vector<double> by_rank(engine_->ranks(), 0.0);  // exact: far below 2^53
  for (std::uint32_t local = 0; local < engine_->local_ranks(); ++local) {
    const std::uint32_t rank = engine_->first_rank() + local;
    by_rank[rank] =
        static_cast<double>(terrace::load_step(sampler, *executors_[local], rank, engine_->ranks()));
  }
  by_rank = engine_->join_processes(std::move(by_rank));
  rank_targets_.assign(by_rank.begin(), by_rank.end());
  const std::uint64_t targets = std::accumulate(rank_targets_.begin(), rank_targets_.end(), std::uint64_t{0});
  if (targets == 0) return 0;
  for (const auto& executor : executors_) executor->set_divisor(targets);
  return targets;
}

void Session::set_loss_scale(double scale) {
  for (const auto& executor : executors_) executor->set_loss_scale(scale);
}

std::vector<double> Session::loss_sums() {
  std::vector<double> sums(contributions_, 0.0);
  for (std::uint32_t local = 0; local < engine_->local_ranks(); ++local) {
    for (std::uint32_t k = engine_->first_rank() + local; k < contributions_; k += engine_->ranks())
      sums[k] = executors_[local]->loss_sum(k);
  }
  return engine_->join_processes(std::move(sums));
}

std::vector<double> Session::rank_losses(std::span<const double> loss_sums) const {
  const std::uint32_t ranks = engine_->ranks();
  std::vector<double> losses;
  for (std::uint32_t rank = 0; rank < ranks && ranks > 1; ++rank) {
    std::vector<double> own;
    for (std::uint32_t k = rank; k < contributions_; k += ranks) own.push_back(loss_sums[k]);
    losses.push_back(mean_loss(own, rank_targets_[rank]));
  }
  return losses;
}

double Session::evaluate(DistributedSampler& sampler, std::uint64_t batches) {
  std::vector<double> sums(batches, 0.0);
  std::uint64_t own = 0;
  const std::uint32_t first_local = engine_->first_rank(), ranks = engine_->ranks();
  for (std::uint64_t first = 0; first < batches; first += ranks) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      const bool local = rank >= first_local && rank < first_local + engine_->local_ranks();
      const bool present = first + rank < batches;  // else nothing is left for it: it only takes part
      if (local && present) own += terrace::load_step(sampler, *executors_[rank - first_local]);
      if (local && !present) executors_[rank - first_local]->set_contribution(0, {}, {});
      if (present) sampler.advance();
    }
    engine_->run(ProgramKind::eval, {});
    for (std::uint32_t local = 0; local < engine_->local_ranks(); ++local) {
      const std::uint64_t batch = first + first_local + local;
      if (batch < batches) sums[batch] = executors_[local]->loss_sum(0);
    }
  }
  return mean_loss(engine_->join_processes(std::move(sums)), engine_->sum_of_processes(own));
}

// Returns the memory that came with them, the libraries' and the executors' own.
std::uint64_t Session::warm_up_executors(const Config& config) {
  // oneDNN ends the process when it finds no room for its code: look for it first, and say so.
  constexpr std::uint64_t kRoomBytes = 32 * kMiB;
  AlignedMemory(kRoomBytes, "oneDNN's code and tables");
  const std::uint64_t before_bytes = process_memory().resident_bytes();
  for (std::uint64_t rank = 0; rank < local_ranks(config); ++rank) {
    executors_.push_back(std::make_unique<GptExecutor>(spec_, config.train.micro_batch, compute_dtype(config),
                                                       grad_dtype(config)));
    executors_.back()->warm_up();
    probes_.push_back(std::make_unique<ExecutorProbe>(*executors_.back()));
  }
  const std::uint64_t after_bytes = process_memory().resident_bytes();
  // Most of what a sanitizer shows is its own.
  return kSanitized ? 0 : after_bytes - std::min(before_bytes, after_bytes);
}

}  // namespace terrace
