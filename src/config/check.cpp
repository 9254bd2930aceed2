#include <cmath>
#include <set>
#include <utility>

#include "src/base/fail.h"
#include "src/base/units.h"
#include "src/config/keys.h"

namespace terrace {
namespace {

void check_model(const Config::Model& model, const std::string& source) {
  if (model.width % model.heads != 0) {
    fail(ErrorCode::invalid_argument, "{}: model.heads = {} does not divide model.width = {}", source,
         model.heads, model.width);
  }
  if (model.kv_heads != 0 && model.heads % model.kv_heads != 0) {
    fail(ErrorCode::invalid_argument, "{}: model.kv_heads = {} does not divide model.heads = {}", source,
         model.kv_heads, model.heads);
  }
}

void check_data(const Config& config, const std::string& source) {
  if (config.data.ignore_token >= static_cast<std::int64_t>(config.model.vocabulary)) {
    fail(ErrorCode::invalid_argument,
         "{}: data.ignore_token = {} is no token: model.vocabulary = {}; wanted a token below it, or -1",
         source, config.data.ignore_token, config.model.vocabulary);
  }
}

void check_placement(const Config& config, std::string_view name, const PlacementShares& shares,
                     const std::string& source) {
  if (shares.automatic) return;
  if (shares.nvme > 0 && config.tiers.nvme.empty()) {
    fail(ErrorCode::invalid_argument,
         "{}: placement.{} puts a share of {} on nvme, but tiers.nvme names no path", source, name,
         shares.nvme);
  }
  if (shares.host > 0 && config.tiers.host_bytes == 0) {
    fail(ErrorCode::invalid_argument, "{}: placement.{} puts a share of {} on host, but tiers.host is 0",
         source, name, shares.host);
  }
  if (shares.device > 0 && config.tiers.device_bytes == 0) {
    fail(ErrorCode::invalid_argument, "{}: placement.{} puts a share of {} on device, but tiers.device is 0",
         source, name, shares.device);
  }
}

constexpr double kLargestLossScale = 0x1p64;  // as src/optimizer/loss_scale.h has it

void check_precision(const Config::Precision& precision, const std::string& source) {
  const auto power_of_two = [&](const char* name, double value) {
    int exponent = 0;
    if (std::frexp(value, &exponent) != 0.5) {
      fail(ErrorCode::invalid_argument,
           "{}: precision.{} = {} is not a power of two; the nearest below is {}", source, name, value,
           std::ldexp(0.5, exponent));
    }
  };
  for (const auto& [name, value] : {std::pair{"loss_scale", precision.loss_scale},
                                    {"loss_scale_initial", precision.loss_scale_initial}}) {
    if (value > kLargestLossScale) {
      fail(ErrorCode::invalid_argument, "{}: precision.{} = {}; the largest is 2^64", source, name, value);
    }
  }
  power_of_two("loss_scale_initial", precision.loss_scale_initial);
  power_of_two("loss_scale_minimum", precision.loss_scale_minimum);
  if (precision.loss_scale_minimum > precision.loss_scale_initial) {
    fail(ErrorCode::invalid_argument,
         "{}: precision.loss_scale_minimum = {} is above precision.loss_scale_initial = {}", source,
         precision.loss_scale_minimum, precision.loss_scale_initial);
  }
}

}  // namespace

void check_config(const Config& config, const std::string& source) {
  check_model(config.model, source);
  check_precision(config.precision, source);
  check_data(config, source);
  const std::pair<const char*, std::uint64_t> kWholeBlocks[] = {
      {"placement.chunk_numel", config.placement.chunk_numel}, {"io.piece_bytes", config.io.piece_bytes}};
  for (const auto& [name, value] : kWholeBlocks) {
    if (value % kBlockNumel != 0) {
      fail(ErrorCode::invalid_argument, "{}: {} = {} is not a multiple of {}; the nearest below is {}",
           source, name, value, kBlockNumel, value / kBlockNumel * kBlockNumel);
    }
  }
  check_placement(config, "parameters", config.placement.parameters, source);
  check_placement(config, "gradients", config.placement.gradients, source);
  check_placement(config, "optimizer_state", config.placement.optimizer_state, source);
  check_placement(config, "activations", config.placement.activations, source);
  constexpr double kSlowestLinkGbps = 1e-6;
  if (config.ranks.link_gbps > 0 && config.ranks.link_gbps < kSlowestLinkGbps) {
    fail(ErrorCode::invalid_argument, "{}: ranks.link_gbps = {}; wanted 0 (none), or at least {}", source,
         config.ranks.link_gbps, kSlowestLinkGbps);
  }
  std::set<std::string> paths;
  for (const auto& path : config.tiers.nvme) {
    if (!paths.insert(path.path).second) {
      fail(ErrorCode::invalid_argument, "{}: tiers.nvme names {} twice", source, path.path);
    }
  }
  if (config.commit.every_steps > 0 && config.store.path.empty()) {
    fail(ErrorCode::invalid_argument, "{}: commit.every_steps = {} needs store.path, the folder to commit to",
         source, config.commit.every_steps);
  }
}

}  // namespace terrace
