// Writes what scripts/check_against_torch.py compares with PyTorch: small models' parameters, batches, losses
// and gradients, and a long AdamW trajectory. Usage: torch_dump DIRECTORY (which exists). Arrays are raw
// little-endian files, named in index.json with their shapes.
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "src/optimizer/chunk_update.h"
#include "src/optimizer/schedule.h"
#include "tests/model/model_runner.h"
#include "tests/model/values.h"

namespace terrace::testing {
namespace {

using nlohmann::json;

class Dump {
 public:
  explicit Dump(std::string directory) : directory_(std::move(directory)) {}

  // Returns the array's entry for the index.
  template <typename T>
  json array(const std::string& name, const T* values, const std::vector<std::uint64_t>& shape) {
    std::uint64_t numel = 1;
    for (const std::uint64_t side : shape) numel *= side;
    std::ofstream file(directory_ + "/" + name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(values), static_cast<std::streamsize>(numel * sizeof(T)));
    if (!file) throw std::runtime_error(directory_ + "/" + name + ": not written");
    const char* kind = std::is_same_v<T, float> ? "float32" : std::is_same_v<T, double> ? "float64" : "int32";
    return {{"file", name}, {"dtype", kind}, {"shape", shape}};
  }

  void index(const json& value) const {
    std::ofstream file(directory_ + "/index.json");
    file << value.dump(1);
    if (!file) throw std::runtime_error(directory_ + "/index.json: not written");
  }

 private:
  std::string directory_;
};

json dump_model(Dump& dump, const std::string& name, const ModelSpec& spec, std::uint32_t samples,
                DType compute) {
  ModelRunner runner(spec, samples, compute, compute);
  const auto params = random_params(spec, 21);
  for (std::size_t u = 0; u < params.size(); ++u) {
    runner.set_params(u, std::vector<float>(params[u].begin(), params[u].end()));
  }
  std::vector<std::uint32_t> tokens(std::size_t{samples} * spec.context);
  std::vector<std::int32_t> targets(tokens.size());
  std::uint64_t real = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<std::uint32_t>(random_bits(5, 1, i, 0) % spec.vocabulary);
    const bool ignored = random_bits(5, 2, i, 0) % 7 == 0;
    targets[i] =
        ignored ? kIgnoreTarget : static_cast<std::int32_t>(random_bits(5, 3, i, 0) % spec.vocabulary);
    real += ignored ? 0 : 1;
  }
  runner.executor().set_contribution(0, tokens, targets);
  runner.executor().set_divisor(real);
  json out = {{"name", name},
              {"layers", spec.layers},
              {"heads", spec.heads},
              {"tied", spec.tied_head},
              {"dtype", dtype_name(compute)},
              {"divisor", real},
              {"loss_sum", runner.train()}};
  const std::vector<std::int32_t> signed_tokens(tokens.begin(), tokens.end());
  out["tokens"] = dump.array(name + ".tokens", signed_tokens.data(), {samples, spec.context});
  out["targets"] = dump.array(name + ".targets", targets.data(), {samples, spec.context});
  const auto units = unit_tensors(spec);
  for (std::size_t u = 0; u < units.size(); ++u) {
    const auto flat = runner.params(u);
    const auto grads = runner.grads(u);
    std::uint64_t at = 0;
    for (const TensorInit& tensor : units[u].tensors) {
      std::vector<std::uint64_t> shape{tensor.columns};
      if (tensor.decay) shape.insert(shape.begin(), tensor.rows);
      out["tensors"].push_back({{"name", tensor.name},
                                {"value", dump.array(name + "." + tensor.name, &flat[at], shape)},
                                {"grad", dump.array(name + "." + tensor.name + ".grad", &grads[at], shape)}});
      at += tensor.numel();
    }
  }
  return out;
}

// Two groups of parameters, `steps` updates with gradients of changing size and a warm-up with cosine decay.
json dump_adamw(Dump& dump, std::uint64_t steps) {
  constexpr std::uint64_t kDecayed = 700;
  constexpr std::uint64_t kNumel = 1000;
  const LearningRateSchedule schedule{ScheduleKind::cosine, 3e-3, 50, steps, 0.1};
  std::vector<AdamWHyper> groups(2, AdamWHyper{0, 0.9, 0.95, 1e-8, 0.1});
  groups[1].weight_decay = 0;
  std::vector<float> master(kNumel);
  std::vector<float> exp_avg(kNumel);
  std::vector<float> exp_avg_sq(kNumel);
  std::vector<float> parameter(kNumel);
  std::vector<float> gradients(steps * kNumel);
  std::vector<float> trajectory(steps * kNumel);
  std::vector<double> rates(steps);
  for (std::uint64_t i = 0; i < kNumel; ++i) master[i] = static_cast<float>(random_normal(1, 1, i, 0));
  json out = {{"decayed", kDecayed}, {"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}};
  out["start"] = dump.array("adamw.start", master.data(), {kNumel});
  for (std::uint64_t step = 0; step < steps; ++step) {
    float* gradient = &gradients[step * kNumel];
    for (std::uint64_t i = 0; i < kNumel; ++i) {
      const double size = std::pow(10.0, -static_cast<double>(i % 9));  // from 1 to 1e-8 = eps
      gradient[i] = static_cast<float>(size * (random_normal(2, 2, i, step) + 0.3));
    }
    rates[step] = schedule.at(step);
    for (AdamWHyper& group : groups) group.lr = rates[step];
    const ChunkSegment segments[] = {{0, kDecayed, 0, step + 1, true},
                                     {kDecayed, kNumel - kDecayed, 1, step + 1, true}};
    update_chunk({master.data(), exp_avg.data(), exp_avg_sq.data()},
                 {master.data(), exp_avg.data(), exp_avg_sq.data()}, {gradient, DType::f32},
                 {parameter.data(), DType::f32}, kNumel, segments, groups, 1.0f);
    std::copy(master.begin(), master.end(), trajectory.begin() + static_cast<std::ptrdiff_t>(step * kNumel));
  }
  out["gradients"] = dump.array("adamw.gradients", gradients.data(), {steps, kNumel});
  out["trajectory"] = dump.array("adamw.trajectory", trajectory.data(), {steps, kNumel});
  out["rates"] = dump.array("adamw.rates", rates.data(), {steps});
  out["exp_avg"] = dump.array("adamw.exp_avg", exp_avg.data(), {kNumel});
  out["exp_avg_sq"] = dump.array("adamw.exp_avg_sq", exp_avg_sq.data(), {kNumel});
  return out;
}

void dump_all(const std::string& directory) {
  Dump dump(directory);
  ModelSpec small;
  small.layers = 2;
  small.width = 24;
  small.heads = 3;
  small.vocabulary = 39;
  small.context = 7;
  ModelSpec large;  // several tiles of queries and of the vocabulary
  large.layers = 3;
  large.width = 128;
  large.heads = 4;
  large.vocabulary = 1000;
  large.context = 150;
  json index;
  for (const bool tied : {true, false}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      small.tied_head = large.tied_head = tied;
      const std::string suffix = std::string(tied ? "tied-" : "untied-") + std::string(dtype_name(dtype));
      index["models"].push_back(dump_model(dump, "small-" + suffix, small, 3, dtype));
      index["models"].push_back(dump_model(dump, "large-" + suffix, large, 4, dtype));
    }
  }
  index["adamw"] = dump_adamw(dump, 1000);
  dump.index(index);
}

}  // namespace
}  // namespace terrace::testing

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: torch_dump DIRECTORY\n");
    return 2;
  }
  try {
    terrace::testing::dump_all(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "torch_dump: %s\n", error.what());
    return 1;
  }
  return 0;
}
