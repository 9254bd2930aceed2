#include "src/train/session.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "src/base/aligned_memory.h"
#include "src/base/log.h"
#include "src/base/parallel_for.h"
#include "src/base/process_memory.h"
#include "src/base/units.h"
#include "src/model/describe.h"
#include "src/model/product_library.h"
#include "src/train/batches.h"

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

EngineModel engine_model(const Config& config, const ModelSpec& spec) {
  EngineModel model;
  model.shape = describe(spec, config.train.micro_batch, compute_dtype(config), grad_dtype(config));
  model.identity = identity_of(config).dump();
  model.numerics = numerics_of(config).dump();
  model.says = "the configuration says";
  model.resume_by = "--resume";
  model.initial = [tensors = unit_tensors(spec), seed = config.train.seed](
                      std::uint32_t unit, std::uint32_t tensor, std::uint64_t begin, std::uint64_t end,
                      float* out) { fill_initial(tensors[unit].tensors[tensor], seed, begin, end, out); };
  model.overhead = [&config, shape = model.shape](std::uint64_t chunk_numel) {
    return host_overhead(config, shape, chunk_numel);
  };
  return model;
}

}  // namespace

Session::Session(const Config& config, const SessionOptions& options)
    : spec_(model_spec(config)), contributions_(config.train.micro_batches) {
  set_parallel_threads(static_cast<int>(config.compute.threads));
  EngineModel model = engine_model(config, spec_);
  model.measured = [&](const HostOverhead& estimate) {
    return overhead_at_least(estimate, warm_up_executors(config));
  };
  engine_ = std::make_unique<Engine>(config, std::move(model), options);
  if (const auto state = engine_->run_state()) resumed_ = run_state_from_json(*state);
  logger()->info("device {}, matrix products by {}", "host", product_library());
  if (config.ranks.count > 1) {
    const RankShape shape = plan().ranks.shape();
    logger()->info("{} ranks as threads, stage {}: {} shards x {} replicas", shape.ranks, config.ranks.stage,
                   shape.shard_size(), shape.replicate_size());
  }
  logger()->info("{} samples a step in {} contributions", effective_batch(config),
                 config.train.micro_batches);
  std::vector<Executor*> executors;
  for (const auto& executor : executors_) executors.push_back(executor.get());
  engine_->start(executors);
}

Session::~Session() = default;

std::uint64_t Session::load_step(const DistributedSampler& sampler) {
  const std::uint32_t ranks = engine_->ranks();
  std::uint64_t targets = 0;
  for (std::uint32_t rank = 0; rank < ranks; ++rank)
    targets += terrace::load_step(sampler, *executors_[rank], rank, ranks);
  if (targets == 0) return 0;
  for (const auto& executor : executors_) executor->set_divisor(targets);
  return targets;
}

void Session::set_loss_scale(double scale) {
  for (const auto& executor : executors_) executor->set_loss_scale(scale);
}

std::vector<double> Session::loss_sums() const {
  std::vector<double> sums;
  for (std::uint32_t k = 0; k < contributions_; ++k)
    sums.push_back(executors_[k % engine_->ranks()]->loss_sum(k));
  return sums;
}

double Session::evaluate(DistributedSampler& sampler, std::uint64_t batches) {
  std::vector<double> sums;
  std::uint64_t targets = 0;
  for (std::uint64_t first = 0; first < batches; first += engine_->ranks()) {
    for (std::uint32_t rank = 0; rank < engine_->ranks(); ++rank) {
      if (first + rank >= batches) {  // nothing left for it: it only takes part
        executors_[rank]->set_contribution(0, {}, {});
        continue;
      }
      targets += terrace::load_step(sampler, *executors_[rank]);
      sampler.advance();
    }
    engine_->run(ProgramKind::eval, {});
    for (std::uint32_t rank = 0; rank < engine_->ranks() && first + rank < batches; ++rank)
      sums.push_back(executors_[rank]->loss_sum(0));
  }
  return mean_loss(sums, targets);
}

// Returns the memory that came with them, the libraries' and the executors' own.
std::uint64_t Session::warm_up_executors(const Config& config) {
  // oneDNN ends the process when it finds no room for its code: look for it first, and say so.
  constexpr std::uint64_t kRoomBytes = 32 * kMiB;
  AlignedMemory(kRoomBytes, "oneDNN's code and tables");
  const std::uint64_t before_bytes = process_memory().resident_bytes();
  for (std::uint32_t rank = 0; rank < config.ranks.count; ++rank) {
    executors_.push_back(std::make_unique<GptExecutor>(spec_, config.train.micro_batch, compute_dtype(config),
                                                       grad_dtype(config)));
    executors_.back()->warm_up();
  }
  const std::uint64_t after_bytes = process_memory().resident_bytes();
  // Most of what a sanitizer shows is its own.
  return kSanitized ? 0 : after_bytes - std::min(before_bytes, after_bytes);
}

}  // namespace terrace
