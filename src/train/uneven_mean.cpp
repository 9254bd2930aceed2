#include "src/train/uneven_mean.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>

#include "src/base/fail.h"
#include "src/train/batches.h"
#include "src/train/session.h"

namespace terrace {
namespace {

constexpr std::uint64_t kMostParameters = std::uint64_t{1} << 20;

float element_at(const std::vector<std::byte>& data, DType dtype, std::uint64_t index) {
  const auto read = [&](auto value) {
    std::memcpy(&value, data.data() + index * sizeof(value), sizeof(value));
    return to_float(value);
  };
  return dtype == DType::f32 ? read(float{}) : dtype == DType::bf16 ? read(bf16{}) : read(f16{});
}

// One rank, in memory, one contribution for each rank that is spoken of.
Config in_memory(const Config& config, std::uint32_t ranks) {
  Config one = config;
  if (config.train.micro_batches != ranks) {
    fail(ErrorCode::invalid_argument,
         "train.micro_batches = {}: wanted one contribution for each of {} ranks", config.train.micro_batches,
         ranks);
  }
  one.ranks = {};
  one.store = {};
  one.commit = {};
  one.tiers.nvme.clear();
  one.placement = {};
  one.placement.chunk_numel = config.placement.chunk_numel;
  return one;
}

// Master parameters and moments as AdamW finds them, by unit, flat.
struct States {
  std::vector<std::array<std::vector<float>, 3>> units;
  std::vector<std::vector<std::uint64_t>> steps;  // updates so far, by unit and tensor
};

States states_of(Session& session) {
  States states;
  for (const UnitShape& unit : session.model().units) {
    auto& streams = states.units.emplace_back();
    for (auto& stream : streams) stream.resize(unit.padded_numel());
    states.steps.emplace_back(unit.tensors.size());
  }
  session.engine().visit([&](std::uint32_t, const ChunkState& state) {
    const Chunk& chunk = session.plan().chunks[state.chunk];
    for (std::size_t s = 0; s < state.streams.size(); ++s) {
      std::copy_n(state.streams[s], chunk.numel,
                  states.units[chunk.unit][s].begin() + static_cast<std::ptrdiff_t>(chunk.begin));
    }
    for (std::size_t i = 0; i < chunk.segments.size(); ++i)
      states.steps[chunk.unit][chunk.segments[i].tensor] = state.segment_steps[i];
  });
  return states;
}

// What AdamW adds to a parameter (kernels/cpu/adamw.h has the formula and its source), in double.
double update_of(const AdamWHyper& hyper, std::uint64_t step, double master, double m, double v,
                 double gradient) {
  m = hyper.beta1 * m + (1 - hyper.beta1) * gradient;
  v = hyper.beta2 * v + (1 - hyper.beta2) * gradient * gradient;
  const double count = static_cast<double>(step);
  const double mean = m / (1 - std::pow(hyper.beta1, count));
  const double root = std::sqrt(v / (1 - std::pow(hyper.beta2, count)));
  return -hyper.lr * (mean / (root + hyper.eps) + hyper.weight_decay * master);
}

class Demo {
 public:
  Demo(const Config& config, std::uint32_t ranks)
      : config_(in_memory(config, ranks)),
        ranks_(ranks),
        tokens_(config.data.path + "/" + kTrainTokensName),
        sampler_(tokens_, train_samples(config_)),
        session_(config_, {}),
        schedule_(schedule_of(config_)) {
    require_vocabulary(tokens_, config.model.vocabulary);
    std::uint64_t parameters = 0;
    for (const UnitShape& unit : session_.model().units) parameters += unit.numel();
    if (parameters > kMostParameters) {
      fail(ErrorCode::invalid_argument, "a model of {} parameters; the demonstration takes at most {}",
           parameters, kMostParameters);
    }
  }

  UnevenMean run() {
    const std::uint64_t before = sampler_.steps_per_epoch() - 1;
    for (std::uint64_t step = 0; step < before; ++step) {
      if (session_.load_step(sampler_) > 0) train(step, schedule_.at(step));
      sampler_.advance();
    }
    session_.engine().drain();
    states_ = states_of(session_);
    groups_ = groups_at(config_, schedule_.at(before));
    read_batch();
    tokens_.require_unchanged();

    UnevenMean demo;
    demo.step = before + 1;
    demo.windows = windows_;
    demo.context = config_.model.context;
    std::vector<std::uint64_t> even, in_turn;
    std::uint64_t left = windows_;
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      even.push_back(contribution_range(rank, windows_, ranks_).size());
      // Leaves each rank after it one.
      in_turn.push_back(std::min<std::uint64_t>(config_.train.micro_batch, left - (ranks_ - 1 - rank)));
      left -= in_turn.back();
    }
    demo.ways.push_back(share("shared out evenly, as the sampler does", even, 1));
    demo.ways.push_back(share("one rank's batch filled after the other", in_turn, 1));
    demo.ways.push_back(
        share("evenly, but the last rank's texts end after a quarter: the rest is padding", even, 4));
    return demo;
  }

 private:
  void train(std::uint64_t step, double lr) {
    StepInputs inputs;
    inputs.step = step + 1;
    inputs.groups = groups_at(config_, lr);
    inputs.clip_norm = config_.optimizer.clip_norm;
    session_.engine().run(ProgramKind::train, inputs);
  }

  // All windows of the sampler's step in their order.
  void read_batch() {
    SamplerOptions options = sampler_.options();
    options.contributions = 1;
    DistributedSampler whole(tokens_, options);
    whole.restore_state(sampler_.save_state());
    windows_ = whole.samples_of_step();
    if (windows_ < ranks_) {
      fail(ErrorCode::invalid_argument, "a last batch of {} windows for {} ranks", windows_, ranks_);
    }
    batch_.resize(windows_ * options.context);
    targets_.resize(batch_.size());
    whole.fill(0, batch_, targets_);
  }

  // `windows[r]` of the batch for rank r, in order; of the last rank's, only the first context / `padding`
  // targets count.
  SharedBatch share(std::string how, const std::vector<std::uint64_t>& windows, std::uint64_t padding) {
    SharedBatch way;
    way.how = std::move(how);
    way.windows = windows;
    const std::uint64_t context = config_.model.context;
    std::uint64_t begin = 0;
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      const std::uint64_t numel = windows[rank] * context;
      std::vector<std::int32_t> targets(targets_.begin() + static_cast<std::ptrdiff_t>(begin),
                                        targets_.begin() + static_cast<std::ptrdiff_t>(begin + numel));
      const std::uint64_t real = rank + 1 == ranks_ ? std::max<std::uint64_t>(context / padding, 1) : context;
      for (std::uint64_t i = 0; i < numel; ++i) {
        if (i % context >= real) targets[i] = kNoTarget;
      }
      way.targets.push_back(
          static_cast<std::uint64_t>(std::ranges::count_if(targets, [](std::int32_t t) { return t >= 0; })));
      session_.executor().set_contribution(rank, std::span(batch_).subspan(begin, numel), targets);
      begin += numel;
    }
    if (std::ranges::count(way.targets, 0u) > 0)
      fail(ErrorCode::invalid_argument, "a rank without a target has no mean of its own");
    const std::uint64_t all = std::accumulate(way.targets.begin(), way.targets.end(), std::uint64_t{0});
    const ModelShape& model = session_.model();
    session_.executor().set_divisor(all);
    session_.probe().watch(OpKind::backward, Role::grads, unit_bytes(model, model.grad_dtype));
    train(sampler_.steps_per_epoch() - 1, 0);  // nothing is learnt: the next way starts from the same
    session_.engine().drain();
    const std::vector<double> sums = session_.loss_sums();
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      way.loss.exact += sums[rank] / static_cast<double>(all);
      way.loss.ranks += sums[rank] / static_cast<double>(way.targets[rank]) / ranks_;
    }
    compare(session_.probe().take(), way);
    return way;
  }

  // gradients[rank][unit] are divided by all targets.
  void compare(const ExecutorProbe::Copies& gradients, SharedBatch& way) const {
    const double all =
        static_cast<double>(std::accumulate(way.targets.begin(), way.targets.end(), std::uint64_t{0}));
    const ModelShape& model = session_.model();
    Means squares, update_squares;  // `ranks` of the second: of the differences
    double difference_squares = 0, largest = -1;
    for (std::size_t u = 0; u < model.units.size(); ++u) {
      std::uint64_t at = 0;
      for (std::size_t t = 0; t < model.units[u].tensors.size(); ++t) {
        const TensorShape& tensor = model.units[u].tensors[t];
        for (std::uint64_t i = 0; i < tensor.numel; ++i, ++at) {
          Means gradient;
          for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
            const double part = element_at(gradients.at(rank).at(u), model.grad_dtype, at);
            gradient.exact += part;
            gradient.ranks += part * all / static_cast<double>(way.targets[rank]) / ranks_;
          }
          const auto update = [&](double value) {
            const auto& [master, m, v] = states_.units[u];
            return update_of(groups_[tensor.group], states_.steps[u][t] + 1, master[at], m[at], v[at], value);
          };
          const Means updates{update(gradient.exact), update(gradient.ranks)};
          const double difference = gradient.ranks - gradient.exact;
          squares.exact += gradient.exact * gradient.exact;
          squares.ranks += gradient.ranks * gradient.ranks;
          difference_squares += difference * difference;
          update_squares.exact += updates.exact * updates.exact;
          update_squares.ranks += (updates.ranks - updates.exact) * (updates.ranks - updates.exact);
          if (std::abs(difference) <= largest) continue;
          largest = std::abs(difference);
          way.tensor = tensor.name;
          way.element = tensor.begin + i;
          way.gradient = gradient;
          way.update = updates;
        }
      }
    }
    way.norm = {std::sqrt(squares.exact), std::sqrt(squares.ranks)};
    way.gradient_error = std::sqrt(difference_squares / squares.exact);
    way.update_error = std::sqrt(update_squares.ranks / update_squares.exact);
  }

  const Config config_;
  const std::uint32_t ranks_;
  TokenFile tokens_;
  DistributedSampler sampler_;
  Session session_;
  LearningRateSchedule schedule_;
  std::vector<AdamWHyper> groups_;
  States states_;
  std::uint64_t windows_ = 0;
  std::vector<std::uint32_t> batch_;
  std::vector<std::int32_t> targets_;
};

std::string joined(const std::vector<std::uint64_t>& numbers) {
  return fmt::format("{}", fmt::join(numbers, " + "));
}

std::string line(const std::string& name, const Means& means) {
  return fmt::format("  {:<34} {:>14.6g} {:>14.6g} {:>12.2g}\n", name, means.exact, means.ranks,
                     means.ranks - means.exact);
}

}  // namespace

UnevenMean uneven_mean(const Config& config) {
  return Demo(config, std::max(config.ranks.count, 2u)).run();
}

std::string to_text(const UnevenMean& demo) {
  std::string text = fmt::format(
      "step {}, the last of epoch 1: {} windows of {} targets\n"
      "exact: the sum over all targets of all ranks, divided once by their number\n"
      "ranks: each rank's mean over its own targets, then the mean of those\n",
      demo.step, demo.windows, demo.context);
  for (const SharedBatch& way : demo.ways) {
    text += fmt::format("\n{} windows, {} targets: {}\n", joined(way.windows), joined(way.targets), way.how);
    text += fmt::format("  {:<34} {:>14} {:>14} {:>12}\n", "", "exact", "ranks", "difference");
    text += line("loss", way.loss) + line("norm of the gradient", way.norm);
    const std::string parameter = fmt::format("{}[{}]", way.tensor, way.element);
    text += line("gradient of " + parameter, way.gradient) + line("AdamW's update of it", way.update);
    text +=
        fmt::format("  all parameters: the gradient is off by {:.2g} of its length, the update by {:.2g}\n",
                    way.gradient_error, way.update_error);
  }
  return text;
}

std::string uneven_mean_demo(const Config& config) {
  return to_text(uneven_mean(config));
}

}  // namespace terrace
