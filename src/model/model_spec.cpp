#include "src/model/model_spec.h"

#include <algorithm>
#include <cmath>

#include "src/base/fail.h"
#include "src/base/hash.h"
#include "src/base/random.h"

namespace terrace {
namespace {

void want_at_least(const char* key, std::uint64_t value, std::uint64_t least) {
  if (value < least)
    fail(ErrorCode::invalid_argument, "model.{}: wanted at least {}, got {}", key, least, value);
}

void want_name(const char* key, const std::string& value, const char* known) {
  if (value != known) fail(ErrorCode::unsupported, "model.{}: wanted \"{}\", got \"{}\"", key, known, value);
}

TensorInit matrix(std::string name, std::uint64_t rows, std::uint64_t columns, double std) {
  return {std::move(name), rows, columns, true, InitRule::normal, std};
}

TensorInit vector(std::string name, std::uint64_t columns, InitRule rule) {
  return {std::move(name), 1, columns, false, rule, 0};
}

}  // namespace

void validate(const ModelSpec& spec) {
  want_at_least("layers", spec.layers, 1);
  want_at_least("width", spec.width, 1);
  want_at_least("heads", spec.heads, 1);
  want_at_least("vocabulary", spec.vocabulary, 1);
  want_at_least("context", spec.context, 1);
  if (spec.width % spec.heads != 0) {
    fail(ErrorCode::invalid_argument, "model.heads: wanted a divisor of model.width ({}), got {}", spec.width,
         spec.heads);
  }
  if (spec.kv_head_count() != spec.heads) {
    fail(
        ErrorCode::unsupported,
        "model.kv_heads: only as many as model.heads ({}) so far (grouped queries are not there yet), got {}",
        spec.heads, spec.kv_heads);
  }
  want_name("norm", spec.norm, "layernorm");
  want_name("position", spec.position, "learned");
  want_name("mlp", spec.mlp, "gelu");
  if (!(spec.init_std >= 0) || !std::isfinite(spec.init_std)) {
    fail(ErrorCode::invalid_argument, "model.init_std: wanted a finite number of at least 0, got {}",
         spec.init_std);
  }
  if (spec.vocabulary > 0x7FFFFFFFu) {
    fail(ErrorCode::invalid_argument, "model.vocabulary: wanted at most {}, got {}", 0x7FFFFFFFu,
         spec.vocabulary);
  }
}

std::vector<UnitTensors> unit_tensors(const ModelSpec& spec) {
  const std::uint64_t width = spec.width;
  const std::uint64_t mlp = spec.mlp_columns();
  const double std = spec.init_std;
  const double residual_std = std / std::sqrt(2.0 * spec.layers);
  std::vector<UnitTensors> units;
  units.push_back(
      {"embedding",
       {matrix("wte.weight", spec.vocabulary, width, std), matrix("wpe.weight", spec.context, width, std)}});
  for (std::uint32_t layer = 0; layer < spec.layers; ++layer) {
    const std::string h = "h." + std::to_string(layer);
    units.push_back(
        {h,
         {vector(h + ".ln_1.weight", width, InitRule::ones), vector(h + ".ln_1.bias", width, InitRule::zeros),
          matrix(h + ".attn.qkv.weight", 3 * width, width, std),
          vector(h + ".attn.qkv.bias", 3 * width, InitRule::zeros),
          matrix(h + ".attn.proj.weight", width, width, residual_std),
          vector(h + ".attn.proj.bias", width, InitRule::zeros),
          vector(h + ".ln_2.weight", width, InitRule::ones), vector(h + ".ln_2.bias", width, InitRule::zeros),
          matrix(h + ".mlp.fc.weight", mlp, width, std), vector(h + ".mlp.fc.bias", mlp, InitRule::zeros),
          matrix(h + ".mlp.proj.weight", width, mlp, residual_std),
          vector(h + ".mlp.proj.bias", width, InitRule::zeros)}});
  }
  UnitTensors head{
      "head", {vector("ln_f.weight", width, InitRule::ones), vector("ln_f.bias", width, InitRule::zeros)}};
  if (!spec.tied_head) head.tensors.push_back(matrix("lm_head.weight", spec.vocabulary, width, std));
  units.push_back(std::move(head));
  return units;
}

void fill_initial(const TensorInit& tensor, std::uint64_t seed, std::uint64_t begin, std::uint64_t end,
                  float* out) {
  check(begin <= end && end <= tensor.numel(), "initial values [{}, {}) of {}, which has {}", begin, end,
        tensor.name, tensor.numel());
  if (tensor.rule != InitRule::normal) {
    std::fill(out, out + (end - begin), tensor.rule == InitRule::ones ? 1.0f : 0.0f);
    return;
  }
  const std::uint64_t name = hash64(tensor.name);
  for (std::uint64_t i = begin; i < end; ++i) {
    out[i - begin] = static_cast<float>(tensor.std * random_normal(seed, name, i, 0));
  }
}

}  // namespace terrace
