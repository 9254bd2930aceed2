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

DistributedSampler::DistributedSampler(const TokenFile& tokens, const SamplerOptions& options)
    : tokens_(&tokens), options_(options) {
  check(options.context > 0 && options.samples_per_step > 0 && options.contributions > 0,
        "a sampler of {} tokens, {} samples, {} contributions", options.context, options.samples_per_step,
        options.contributions);
  if (tokens.count() <= options.context) {
    fail(ErrorCode::invalid_argument,
         "{}: too short for one sample: model.context = {} needs {} tokens; got {}", tokens.path(),
         options.context, std::uint64_t{options.context} + 1, tokens.count());
  }
  windows_ = (tokens.count() - 1) / options.context;
}

std::uint64_t DistributedSampler::window_at(std::uint64_t position) const {
  const std::uint64_t index = position % windows_;
  return options_.shuffle ? Permutation(windows_, options_.seed, position / windows_)(index) : index;
}

std::uint64_t DistributedSampler::contribution_samples(std::uint64_t k) const {
  return contribution_range(k, options_.samples_per_step, options_.contributions).size();
}

void DistributedSampler::fill(std::uint64_t k, std::span<std::uint32_t> tokens,
                              std::span<std::uint32_t> targets, std::uint64_t steps_ahead) const {
  const SampleRange range = contribution_range(k, options_.samples_per_step, options_.contributions);
  const std::uint64_t context = options_.context;
  check(tokens.size() == range.size() * context && targets.size() == tokens.size(),
        "contribution {}: {} tokens and {} targets for {} samples of {}", k, tokens.size(), targets.size(),
        range.size(), context);
  const std::uint64_t start = position_ + steps_ahead * options_.samples_per_step;
  for (std::uint64_t i = 0; i < range.size(); ++i) {
    const std::uint64_t first = window_at(start + range.begin + i) * context;
    tokens_->read(first, tokens.subspan(i * context, context));
    tokens_->read(first + 1, targets.subspan(i * context, context));
  }
}

namespace {

// What a state and a sampler must agree on, under the name a message should give it.
nlohmann::json identity(const TokenFile& tokens, const SamplerOptions& options) {
  return {{"data_checksum", fmt::format("{:016x}", tokens.checksum())},
          {"data_tokens", tokens.count()},
          {"context", options.context},
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
  const auto state = nlohmann::json::parse(json, nullptr, false);
  if (!state.is_object() || !state.contains("position") || !state["position"].is_number_unsigned()) {
    fail(ErrorCode::corrupt, "sampler state: wanted a JSON object with a position; got {}", json);
  }
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
