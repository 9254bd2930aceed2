#include "src/config/keys.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <utility>

namespace terrace {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

using FieldOf = ConfigField (*)(Config&);

ConfigKey integer(std::string_view name, FieldOf field, std::string_view unit, KeyRange range,
                  std::string_view doc) {
  return {name, KeyForm::integer, unit, range, {}, field, doc};
}
ConfigKey number(std::string_view name, FieldOf field, KeyRange range, std::string_view doc) {
  return {name, KeyForm::number, "", range, {}, field, doc};
}
ConfigKey size(std::string_view name, FieldOf field, KeyRange range, std::string_view doc) {
  return {name, KeyForm::size, "bytes", range, {}, field, doc};
}
ConfigKey choice(std::string_view name, FieldOf field, std::vector<std::string_view> choices,
                 std::string_view doc) {
  return {name, KeyForm::choice, "", {}, std::move(choices), field, doc};
}
ConfigKey other(KeyForm form, std::string_view name, FieldOf field, std::string_view doc) {
  return {name, form, "", {}, {}, field, doc};
}

// F(model.width): a function that points at that field of a Config.
#define F(member) [](Config& config) -> ConfigField { return &config.member; }

const std::vector<ConfigKey>& keys() {
  static const std::vector<ConfigKey> kKeys{
      integer("model.layers", F(model.layers), "", {1, 4096}, "Transformer blocks."),
      integer("model.width", F(model.width), "", {1, 1 << 20}, "Width of the residual stream."),
      integer("model.heads", F(model.heads), "", {1, 65536}, "Attention heads; divides `model.width`."),
      integer("model.kv_heads", F(model.kv_heads), "", {0, 65536},
              "Heads of keys and values; divides `model.heads`. 0 = as many as `model.heads`."),
      integer("model.mlp_width", F(model.mlp_width), "", {0, 1 << 22},
              "Inner width of the MLP. 0 = four times `model.width`."),
      integer("model.vocabulary", F(model.vocabulary), "tokens", {2, 1 << 24},
              "Rows of the embedding. Byte tokens use the first 256; at least the vocabulary of the data."),
      integer("model.context", F(model.context), "tokens", {1, 1 << 20}, "Tokens of a sample."),
      other(KeyForm::flag, "model.tied_head", F(model.tied_head),
            "The head reads the embedding instead of weights of its own."),
      choice("model.norm", F(model.norm), {"layernorm"},
             "Normalisation before attention, before the MLP and before the head."),
      choice("model.position", F(model.position), {"learned"},
             "How positions enter: a learned embedding of each."),
      choice("model.mlp", F(model.mlp), {"gelu"}, "The MLP: two products with a GELU (tanh form) between."),
      number("model.init_std", F(model.init_std), {0, 10}, "Standard deviation of the initial weights."),
      other(KeyForm::text, "data.path", F(data.path), "Folder written by `terrace data prepare`."),
      integer("data.stride", F(data.stride), "tokens", {0, 1 << 20},
              "From the start of one sample to that of the next. 0 = `model.context`: each target is of one "
              "sample only. Evaluation always takes `model.context`."),
      choice("data.last_batch", F(data.last_batch), {"straddle", "short"},
             "The step at the end of an epoch. `straddle` = full, with samples of the next epoch. `short` = "
             "only the samples that are left: every sample comes once an epoch, and no step mixes two."),
      integer("data.ignore_token", F(data.ignore_token), "", {-1, 1 << 24},
              "Padding: a target of this token counts for nothing, neither in the loss nor in its mean. "
              "-1 = none."),
      integer("train.steps", F(train.steps), "steps", {1, kNoLimit},
              "Steps of the whole run, those before a resume included."),
      integer("train.micro_batch", F(train.micro_batch), "samples", {1, 1 << 24},
              "Samples of a contribution."),
      integer("train.micro_batches", F(train.micro_batches), "", {1, 1 << 24},
              "Contributions of a step, over all ranks: a step has `micro_batch * micro_batches` samples."),
      integer("train.eval_every", F(train.eval_every), "steps", {0, kNoLimit},
              "Steps between two evaluations on the validation split. 0 = only at the end."),
      integer("train.eval_batches", F(train.eval_batches), "", {0, 1 << 24},
              "Contributions of one evaluation. 0 = no evaluation at all."),
      integer("train.seed", F(train.seed), "", {0, kNoLimit},
              "Seed of the initial weights and of the order of samples."),
      choice("train.recompute", F(train.recompute), {"auto", "always", "never"},
             "Rebuild a block's activations in backward instead of keeping them; the numbers are the same "
             "either way."),
      integer("train.lr_reference_batch", F(train.lr_reference_batch), "samples", {0, kNoLimit},
              "Samples a step that `optimizer.lr` was chosen for; with `micro_batch * micro_batches` of them "
              "the peak learning rate is scaled by `train.lr_scaling`. 0 = no scaling."),
      choice("train.lr_scaling", F(train.lr_scaling), {"linear", "sqrt"},
             "How the peak learning rate grows: with the ratio of samples a step to "
             "`train.lr_reference_batch`, or with its square root. The warm-up leads to the scaled rate."),
      integer(
          "ranks.count", F(ranks.count), "ranks", {1, 1024},
          "Ranks, each with a device tier of its own: threads of this process or, with `ranks.per_process`, "
          "processes. Contribution k of a step is computed by rank k modulo this; the numbers do not depend "
          "on it, but for `ranks.reduce` and `ranks.hybrid_reduce`."),
      integer("ranks.per_process", F(ranks.per_process), "ranks", {0, 1},
              "1: each rank is a process of its own, started by `mpirun -n N`, and `ranks.count` is N; "
              "budgets of "
              "host and disks are shared by all of them. 0 = all ranks are threads of one process."),
      choice("ranks.stage", F(ranks.stage),
             {"0", "1", "2", "3", "no_shard", "shard_grad_op", "full_shard", "hybrid_shard"},
             "What ranks share out: `0` nothing (`no_shard`), `1` optimizer state, `2` also gradients "
             "(`shard_grad_op`), `3` also parameters (`full_shard`); `hybrid_shard`: stage 3 within each of "
             "`ranks.replicas` groups."),
      integer("ranks.replicas", F(ranks.replicas), "", {0, 1024},
              "Copies of the model under `hybrid_shard`; divides `ranks.count`. 0 = 2 there, else 1."),
      choice("ranks.reduce", F(ranks.reduce), {"each", "last", "grouped"},
             "In what order a step's contributions are added up. `each`: one by one, by the owner of each "
             "part; the numbers do not depend on the ranks. `last`, under stages 0 and 1: each rank adds up "
             "its own first, and ranks exchange once a step (`no_sync`); takes 4 bytes of device memory a "
             "parameter. `grouped`: the contributions of all ranks first, then those of the next round, so "
             "that one sum of 2 bytes a parameter goes to the host, not one from each rank. The last two are "
             "equal to `each`, and to other numbers of ranks, only to rounding."),
      choice("ranks.hybrid_reduce", F(ranks.hybrid_reduce), {"flat", "hierarchical"},
             "Under `hybrid_shard`: `flat` sends every contribution to the one rank that adds all up; "
             "`hierarchical` adds up within each replica first and sends only these sums between replicas, "
             "a share of 1 / `(ranks.count / ranks.replicas)` of the traffic between them; equal to `flat` "
             "only to rounding."),
      integer("ranks.persist_below_numel", F(ranks.persist_below_numel), "elements", {0, kNoLimit},
              "Under stage 3 and `hybrid_shard`: units all of whose tensors have fewer elements keep their "
              "16-bit parameters whole on every rank, gathered once a step and not for each use. The numbers "
              "do not depend on it; under the other stages it changes nothing. 0 = none."),
      other(KeyForm::flag, "ranks.own_seeds", F(ranks.own_seeds),
            "As data-parallel programs do it: rank r draws its initial weights from seed `train.seed` + r, "
            "and rank 0's are broadcast before the first step; so the numbers stay those of `train.seed`. "
            "Takes 4 bytes of host memory for each parameter whose state a rank holds. `false` = every rank "
            "draws what it holds from `train.seed`."),
      number("ranks.time_limit_s", F(ranks.time_limit_s), {0.001, 86400},
             "Seconds that a rank may be waited for in a collective before the run stops and names it."),
      number(
          "ranks.link_gbps", F(ranks.link_gbps), {0, kNoLimit},
          "Emulates a link of that many 1e9 bytes a second that one rank can send. 0 = as fast as it goes."),
      number("optimizer.lr", F(optimizer.lr), {0, kNoLimit}, "Peak learning rate of AdamW."),
      number("optimizer.beta1", F(optimizer.beta1), {0, 1, false, true}, "Decay of the first moment."),
      number("optimizer.beta2", F(optimizer.beta2), {0, 1, false, true}, "Decay of the second moment."),
      number("optimizer.eps", F(optimizer.eps), {0, 1, true, false},
             "Added to the root of the second moment."),
      number("optimizer.weight_decay", F(optimizer.weight_decay), {0, kNoLimit},
             "Decoupled weight decay; not on biases and norms."),
      number(
          "optimizer.clip_norm", F(optimizer.clip_norm), {0, kNoLimit},
          "Largest norm of the whole gradient; above it the gradient is scaled down. 0 = no clipping: "
          "updates "
          "need not wait for the whole gradient, and one that is not finite ends the run, unless there is a "
          "loss scale."),
      choice("optimizer.schedule", F(optimizer.schedule), {"constant", "linear", "cosine"},
             "Learning rate after the warm-up."),
      integer("optimizer.warmup_steps", F(optimizer.warmup_steps), "steps", {0, kNoLimit},
              "Steps in which the learning rate rises linearly to `optimizer.lr`."),
      number("optimizer.min_lr_ratio", F(optimizer.min_lr_ratio), {0, 1},
             "Learning rate at the last step of `linear` and `cosine`, as a share of `optimizer.lr`."),
      other(
          KeyForm::parameter_groups, "optimizer.groups", F(optimizer.groups),
          "Tensors with hyperparameters of their own, each entry a table `[[optimizer.groups]]`. `match` is "
          "a pattern over tensor names (`*` any text, `?` one character, `[ab]` one of these); a tensor "
          "belongs to the first entry that matches it. `lr_ratio` times the rate of the schedule; "
          "`weight_decay` instead of what the tensor would have without the entry. `frozen = true`: never "
          "updated, and no part of the gradient's norm; saved all the same."),
      choice(
          "precision.compute", F(precision.compute), {"bf16", "fp16", "fp32"},
          "Parameters and activations as compute sees them. Masters and moments are fp32 always. Where the "
          "processor does not multiply a 16-bit type, it is stored as such and multiplied in fp32; the log "
          "says "
          "so."),
      choice("precision.grad", F(precision.grad), {"auto", "bf16", "fp16", "fp32"},
             "What a contribution and the summed gradient are rounded to. `auto` = `precision.compute`."),
      {"precision.loss_scale",
       KeyForm::number_or_word,
       "",
       {0, kNoLimit, true, false},
       {"auto", "dynamic"},
       F(precision.loss_scale),
       "What the loss is multiplied by before backward, and the gradient divided by after: small gradients "
       "would "
       "vanish in fp16. `auto` = `dynamic` where `precision.compute` or `precision.grad` is fp16, else 1. A "
       "step "
       "whose gradient is not finite is dropped."},
      number("precision.loss_scale_initial", F(precision.loss_scale_initial), {0, kNoLimit, true, false},
             "Where a dynamic loss scale starts; a power of two."),
      integer("precision.loss_scale_window", F(precision.loss_scale_window), "steps", {1, kNoLimit},
              "Steps in a row with a finite gradient after which a dynamic loss scale is doubled."),
      integer("precision.loss_scale_hysteresis", F(precision.loss_scale_hysteresis), "steps", {1, kNoLimit},
              "Steps whose gradient is not finite until a dynamic loss scale is halved: the first "
              "`loss_scale_hysteresis - 1` since it was last doubled are only dropped."),
      number("precision.loss_scale_minimum", F(precision.loss_scale_minimum), {0, kNoLimit, true, false},
             "Lowest dynamic loss scale; a power of two. A gradient that is not finite even there ends the "
             "run."),
      size("tiers.device", F(tiers.device_bytes), {0, kNoLimit}, "Budget of the device tier; hard."),
      size("tiers.host", F(tiers.host_bytes), {0, kNoLimit}, "Budget of the host tier; hard."),
      other(KeyForm::nvme_paths, "tiers.nvme", F(tiers.nvme),
            "Folders on disk and how much of each may be used; without `size`, what is free. Several are "
            "used together."),
      other(KeyForm::placement, "placement.parameters", F(placement.parameters),
            "Where the parameters that compute reads lie."),
      other(KeyForm::placement, "placement.gradients", F(placement.gradients),
            "Where the summed gradients lie."),
      other(KeyForm::placement, "placement.optimizer_state", F(placement.optimizer_state),
            "Where fp32 masters and both moments lie."),
      other(KeyForm::placement, "placement.activations", F(placement.activations),
            "Where activations that wait for backward lie."),
      integer("placement.chunk_numel", F(placement.chunk_numel), "elements", {4096, 1e12},
              "Elements of a chunk, the granule of placement and transfer; a multiple of 4096."),
      other(KeyForm::flag, "placement.prefetch", F(placement.prefetch),
            "Fetch ahead as far as the budgets allow. `false` = only what is needed next: the least memory, "
            "and "
            "slower."),
      other(KeyForm::text, "store.path", F(store.path),
            "Folder of the store, which is the checkpoint. Empty = none: nothing can be resumed."),
      other(KeyForm::integer_or_auto, "commit.every_steps", F(commit.every_steps),
            "Steps between two commits; each runs inside the step after it, so a kill loses up to one step "
            "more than "
            "this. 0 = never: one extent a chunk, no resume. `auto` = every step where "
            "all states are on disk anyway, else so that commits cost at most 5% of the disk's time."),
      choice("io.queue", F(io.queue), {"auto", "uring", "threads"},
             "How requests reach the kernel. `auto` = io_uring, threads where it is refused."),
      integer("io.depth", F(io.depth), "requests", {1, 4096}, "Requests under way at once on each disk."),
      size("io.piece_bytes", F(io.piece_bytes), {4096, 1 << 30},
           "Size that large transfers are cut into; a multiple of 4096."),
      integer("compute.threads", F(compute.threads), "", {0, 4096},
              "Threads of compute and AdamW in this process; no effect on the numbers. 0 = one a core, "
              "shared out where ranks are processes."),
      other(KeyForm::flag, "compute.adversarial", F(compute.adversarial),
            "For tests: every asynchronous operation is delayed until something waits for it."),
  };
  return kKeys;
}
#undef F

constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kTables{{
    {"model", "The transformer."},
    {"data", "What is trained on."},
    {"train", "The run."},
    {"ranks", "Data parallelism and ZeRO."},
    {"optimizer", "AdamW and its learning rate."},
    {"precision", "Number formats."},
    {"tiers", "Byte budgets. A run that would exceed one is refused before its first step."},
    {"placement",
     "Where each class of data lies: `\"auto\"`, one tier (`\"device\"`, `\"host\"`, `\"nvme\"`) or shares "
     "that add up "
     "to 1 (`{host = 0.5, nvme = 0.5}`). Placement never changes the numbers."},
    {"store", "The state on disk."},
    {"commit", "When the store becomes a checkpoint."},
    {"io", "Transfers to and from disk."},
}};

}  // namespace

std::span<const ConfigKey> config_keys() {
  return keys();
}

const ConfigKey* find_key(std::string_view name) {
  const auto found = std::ranges::find(keys(), name, &ConfigKey::name);
  return found == keys().end() ? nullptr : &*found;
}

std::string_view table_doc(std::string_view table) {
  for (const auto& [name, doc] : kTables) {
    if (name == table) return doc;
  }
  return "Threads, and switches for tests.";
}

bool in_range(const KeyRange& range, double value) {
  return (range.min_open ? value > range.min : value >= range.min) &&
         (range.max_open ? value < range.max : value <= range.max);
}

std::string_view word_of(const ConfigKey& key, double value) {
  for (std::size_t i = 0; i < key.choices.size(); ++i) {
    if (value == -1.0 - static_cast<double>(i)) return key.choices[i];
  }
  return {};
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      cost[i][j] =
          std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

const ConfigKey& nearest_key(std::string_view name) {
  return *std::ranges::min_element(keys(), {},
                                   [name](const ConfigKey& key) { return edit_distance(name, key.name); });
}

std::string describe_wanted(const ConfigKey& key) {
  const auto range = [&](std::string_view noun) {
    const auto& [min, max, min_open, max_open] = key.range;
    const std::string from = fmt::format("{} {}", min_open ? "above" : "at least", min);
    if (max == kNoLimit) return fmt::format("{}, {}", noun, from);
    if (!min_open && !max_open) return fmt::format("{} from {} to {}", noun, min, max);
    return fmt::format("{}, {} and {} {}", noun, from, max_open ? "below" : "at most", max);
  };
  switch (key.form) {
    case KeyForm::integer:
      return range("an integer");
    case KeyForm::integer_or_auto:
      return "\"auto\" or " + range("an integer");
    case KeyForm::size:
      return "a size such as \"512MiB\", or a number of bytes";
    case KeyForm::number:
      return range("a number");
    case KeyForm::number_or_word: {
      std::string text;
      for (const std::string_view word : key.choices) text += fmt::format("\"{}\" or ", word);
      return text + range("a number");
    }
    case KeyForm::flag:
      return "true or false";
    case KeyForm::text:
      return "a string";
    case KeyForm::choice: {
      std::string text = key.choices.size() > 1 ? "one of" : "";
      for (std::size_t i = 0; i < key.choices.size(); ++i) {
        text += fmt::format("{}\"{}\"", i > 0 ? ", " : text.empty() ? "" : " ", key.choices[i]);
      }
      return text;
    }
    case KeyForm::placement:
      return "\"auto\", \"device\", \"host\", \"nvme\", or shares that add up to 1 such as {host = 0.5, nvme "
             "= 0.5}";
    case KeyForm::nvme_paths:
      return "a list such as [{path = \"/mnt/nvme0/terrace\", size = \"1TiB\"}]";
    case KeyForm::parameter_groups:
      return "a list such as [{match = \"*.bias\", lr_ratio = 2.0, weight_decay = 0.0}]";
  }
  return "";
}

}  // namespace terrace
