// The configuration of a run: one struct, defaults in place. Read from TOML (docs/configuration.md is
// generated from the same table that reads it).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace terrace {

// Where one class of data may lie: "auto", one tier, or shares of tiers that add up to 1.
struct PlacementShares {
  bool automatic = true;
  double device = 0;
  double host = 0;
  double nvme = 0;
};

struct NvmePath {
  std::string path;
  std::uint64_t size_bytes = 0;  // 0 = what is free
};

// Tensors that are optimized in a way of their own.
struct ParameterGroup {
  std::string match;                   // pattern over tensor names: "h.*.mlp.*", "*.bias", "wte.weight"
  double lr_ratio = 1;                 // of the learning rate that the schedule gives
  std::optional<double> weight_decay;  // without: as the tensor would have it outside of any group
  bool frozen = false;                 // never updated
};

struct Config {
  struct Model {
    std::uint32_t layers = 12;
    std::uint32_t width = 768;
    std::uint32_t heads = 12;
    std::uint32_t kv_heads = 0;   // 0 = heads
    std::uint32_t mlp_width = 0;  // 0 = 4 * width
    std::uint32_t vocabulary = 256;
    std::uint32_t context = 256;  // tokens of a sample
    bool tied_head = true;
    std::string norm = "layernorm";
    std::string position = "learned";
    std::string mlp = "gelu";
    double init_std = 0.02;
  } model;
  struct Data {
    std::string path;                     // folder written by `terrace data prepare`
    std::uint32_t stride = 0;             // tokens between the starts of two samples; 0 = model.context
    std::string last_batch = "straddle";  // straddle, short: what the last step of an epoch holds
    std::int64_t ignore_token = -1;       // a target of this token counts for nothing; -1 = none
  } data;
  struct Train {
    std::uint64_t steps = 100;
    std::uint32_t micro_batch = 4;    // samples of a contribution
    std::uint32_t micro_batches = 1;  // contributions of a step, over all ranks
    std::uint64_t eval_every = 0;     // 0 = only at the end
    std::uint32_t eval_batches = 8;   // contributions of one evaluation
    std::uint64_t seed = 1;
    std::string recompute = "auto";        // auto, always, never: rebuild a block's activations in backward
    std::uint64_t lr_reference_batch = 0;  // samples that optimizer.lr was chosen for; 0 = no scaling
    std::string lr_scaling = "linear";     // linear, sqrt: how lr grows with samples a step
  } train;
  struct Ranks {
    std::uint32_t count = 1;
    // 0 to 3, or FSDP's names: no_shard, shard_grad_op, full_shard, hybrid_shard
    std::string stage = "3";
    std::uint32_t per_process = 0;  // 0 = all ranks are threads of this process; 1 = each is a process (MPI)
    std::uint32_t replicas = 0;     // of hybrid_shard; 0 = 2 there, else 1
    std::string reduce = "each";    // each, last, grouped: when contributions are added up
    std::string hybrid_reduce = "flat";  // flat, hierarchical: under hybrid_shard
    // Stage 3: units all of whose tensors have fewer elements stay whole on every rank; 0 = none.
    std::uint64_t persist_below_numel = 0;
    bool own_seeds = false;    // each rank draws initial weights of its own; rank 0's are broadcast
    double time_limit_s = 30;  // how long a rank may be waited for in a collective
    double link_gbps = 0;      // emulated link of a rank; 0 = as fast as it goes
  } ranks;
  struct Optimizer {
    double lr = 3e-4;
    double beta1 = 0.9;
    double beta2 = 0.95;
    double eps = 1e-8;
    double weight_decay = 0.1;        // not on biases, norms
    double clip_norm = 1.0;           // 0 = no clipping
    std::string schedule = "cosine";  // constant, linear, cosine
    std::uint64_t warmup_steps = 0;
    double min_lr_ratio = 0.1;           // of lr, at the last step of linear and cosine
    std::vector<ParameterGroup> groups;  // a tensor belongs to the first that matches its name
  } optimizer;
  struct Precision {
    std::string compute = "bf16";             // bf16, fp16, fp32
    std::string grad = "auto";                // auto (= compute), bf16, fp16, fp32
    double loss_scale = -1;                   // -1 = auto, -2 = dynamic, else the scale
    double loss_scale_initial = 65536;        // of a dynamic scale; a power of two
    std::uint64_t loss_scale_window = 1000;   // finite steps in a row that double it
    std::uint64_t loss_scale_hysteresis = 2;  // overflows until it is halved
    double loss_scale_minimum = 1;            // a power of two
  } precision;
  struct Tiers {
    std::uint64_t device_bytes = std::uint64_t{4} << 30;
    std::uint64_t host_bytes = std::uint64_t{8} << 30;
    std::vector<NvmePath> nvme;
  } tiers;
  struct Placement {
    PlacementShares parameters;
    PlacementShares gradients;
    PlacementShares optimizer_state;
    PlacementShares activations;
    std::uint64_t chunk_numel = 1u << 20;  // elements of a chunk; multiple of 4096
    bool prefetch = true;                  // false: nothing is fetched before it is needed
  } placement;
  struct Store {
    std::string path;  // empty = no store: nothing can be resumed
  } store;
  struct Commit {
    std::int64_t every_steps = -1;  // -1 = auto, 0 = never
  } commit;
  struct Io {
    std::string queue = "auto";  // auto, uring, threads
    std::uint32_t depth = 16;
    std::uint64_t piece_bytes = 1u << 20;
  } io;
  struct Compute {
    std::uint32_t threads = 0;  // 0 = one a core
    bool adversarial = false;   // delay every asynchronous operation until something waits for it; for tests
  } compute;
};

// Reads `file`; then applies `overrides` ("train.steps=20"), each in TOML syntax. Throws invalid_argument
// naming file, line and key, what was wanted, and the nearest known key; not_found for the file.
Config load_config(const std::string& file, const std::vector<std::string>& overrides = {});

// The documentation of every key, as the Markdown of docs/configuration.md.
std::string config_reference();

// The whole configuration as TOML with every key spelled out; load_config reads it back to the same values.
std::string to_toml(const Config& config);

}  // namespace terrace
