#include "src/data/sampler.h"

#include <array>
#include <nlohmann/json.hpp>
#include <vector>

#include "src/base/fail.h"
#include "src/data/permutation.h"

namespace terrace {

SampleRange contribution_range(std::uint64_t k, std::uint64_t samples, std::uint64_t contributions) {
  check(contributions > 0 && k < contributions, "contribution {} of {}", k, contributions);
  // floor(k*n/C) without overflow: k*n = k*(q*C + r) with n = q*C + r.
  const std::uint64_t quotient = samples / contributions;
  const std::uint64_t rest = samples % contributions;
  const auto border = [&](std::uint64_t i) {
    return i * quotient +
           static_cast<std::uint64_t>(static_cast<unsigned __int128>(i) * rest / contributions);
  };
  return {border(k), border(k + 1)};
}

LastBatch parse_last_batch(std::string_view name) {
  if (name == "straddle") return LastBatch::straddle;
  if (name == "short") return LastBatch::short_of_full;
  fail(ErrorCode::invalid_argument, "last_batch is '{}'; wanted straddle or short", name);
}

DistributedSampler::DistributedSampler(const TokenFile& tokens, const SamplerOptions& options)
    : tokens_(&tokens), options_(options) {
  check(options.context > 0 && options.samples_per_step > 0 && options.contributions > 0,
        "a sampler of {} tokens, {} samples, {} contributions", options.context, options.samples_per_step,
        options.contributions);
  if (options_.stride == 0) options_.stride = options.context;
  if (tokens.count() <= options.context) {
    fail(ErrorCode::invalid_argument,
         "{}: too short for one sample: model.context = {} needs {} tokens; got {}", tokens.path(),
         options.context, std::uint64_t{options.context} + 1, tokens.count());
  }
  constexpr std::uint64_t kMaxVocabulary = std::uint64_t{1} << 31;  // targets are signed
  if (tokens.vocabulary() > kMaxVocabulary) {
    fail(ErrorCode::invalid_argument, "{}: a vocabulary of {} tokens; wanted at most {}", tokens.path(),
         tokens.vocabulary(), kMaxVocabulary);
  }
  windows_ = (tokens.count() - 1 - options.context) / options_.stride + 1;
}

std::uint64_t DistributedSampler::steps_per_epoch() const {
  return (windows_ - 1) / options_.samples_per_step + 1;
}

std::uint64_t DistributedSampler::window_at(std::uint64_t position) const {
  const std::uint64_t index = position % windows_;
  return options_.shuffle ? Permutation(windows_, options_.seed, position / windows_)(index) : index;
}

std::uint64_t DistributedSampler::position_after(std::uint64_t steps) const {
  const std::uint64_t full = options_.samples_per_step;
  if (options_.last_batch == LastBatch::straddle) return position_ + steps * full;
  // This epoch may have been entered in the middle by a resume; those after it begin at a step.
  const std::uint64_t left = windows_ - position_ % windows_;
  const std::uint64_t steps_left = (left - 1) / full + 1;
  if (steps < steps_left) return position_ + steps * full;
  steps -= steps_left;
  return position_ + left + steps / steps_per_epoch() * windows_ + steps % steps_per_epoch() * full;
}

std::uint64_t DistributedSampler::samples_of_step(std::uint64_t steps_ahead) const {
  return position_after(steps_ahead + 1) - position_after(steps_ahead);
}

std::uint64_t DistributedSampler::contribution_samples(std::uint64_t k, std::uint64_t steps_ahead) const {
  return contribution_range(k, samples_of_step(steps_ahead), options_.contributions).size();
}

std::uint64_t DistributedSampler::fill(std::uint64_t k, std::span<std::uint32_t> tokens,
                                       std::span<std::int32_t> targets, std::uint64_t steps_ahead) const {
  const SampleRange range = contribution_range(k, samples_of_step(steps_ahead), options_.contributions);
  const std::uint64_t context = options_.context;
  check(tokens.size() == range.size() * context && targets.size() == tokens.size(),
        "contribution {}: {} tokens and {} targets for {} samples of {}", k, tokens.size(), targets.size(),
        range.size(), context);
  const std::uint64_t start = position_after(steps_ahead) + range.begin;
  std::vector<std::uint32_t> window(context + 1);
  std::uint64_t real = 0;
  for (std::uint64_t i = 0; i < range.size(); ++i) {
    tokens_->read(window_at(start + i) * options_.stride, window);
    for (std::uint64_t j = 0; j < context; ++j) {
      const std::uint32_t target = window[j + 1];
      const bool ignored = std::int64_t{target} == options_.ignore_token;
      tokens[i * context + j] = window[j];
      targets[i * context + j] = ignored ? kNoTarget : static_cast<std::int32_t>(target);
      real += ignored ? 0 : 1;
    }
  }
  return real;
}

namespace {

// What a state and a sampler must agree on, under the name a message should give it.
nlohmann::json identity(const TokenFile& tokens, const SamplerOptions& options) {
  return {{"data_checksum", fmt::format("{:016x}", tokens.checksum())},
          {"data_tokens", tokens.count()},
          {"context", options.context},
          {"stride", options.stride},
          {"seed", options.seed},
          {"shuffle", options.shuffle}};
}

}  // namespace

std::string DistributedSampler::save_state() const {
  nlohmann::json state = identity(*tokens_, options_);
  state["position"] = position_;
  state["epoch"] = epoch();
  return state.dump();
}

void DistributedSampler::restore_state(const std::string& json) {
  auto state = nlohmann::json::parse(json, nullptr, false);
  if (!state.is_object() || !state.contains("position") || !state["position"].is_number_unsigned()) {
    fail(ErrorCode::corrupt, "sampler state: wanted a JSON object with a position; got {}", json);
  }
  // States from before there was a stride had windows `context` apart.
  if (!state.contains("stride") && state.contains("context")) state["stride"] = state["context"];
  const nlohmann::json wanted = identity(*tokens_, options_);
  for (const auto& [name, value] : wanted.items()) {
    if (!state.contains(name)) fail(ErrorCode::corrupt, "sampler state: {} is missing", name);
    if (state[name] != value) {
      fail(ErrorCode::invalid_argument,
           "{}: the saved run had {} = {}; this one has {}: the order of samples would not be the same",
           tokens_->path(), name, state[name].dump(), value.dump());
    }
  }
  position_ = state["position"].get<std::uint64_t>();
}

void require_vocabulary(const TokenFile& tokens, std::uint64_t model_vocabulary) {
  if (tokens.vocabulary() > model_vocabulary) {
    fail(ErrorCode::invalid_argument, "{}: its vocabulary of {} tokens is larger than model.vocabulary = {}",
         tokens.path(), tokens.vocabulary(), model_vocabulary);
  }
}

}  // namespace terrace
