#include "src/train/parameter_groups.h"

#include <fnmatch.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <limits>
#include <string>

#include "src/base/fail.h"
#include "src/base/log.h"
#include "src/config/keys.h"

namespace terrace {
namespace {

constexpr std::uint32_t kDefaultGroups = 2;  // with and without weight decay

bool matches(const ParameterGroup& group, const std::string& tensor) {
  return ::fnmatch(group.match.c_str(), tensor.c_str(), 0) == 0;
}

std::string words(std::size_t entry, const ParameterGroup& group) {
  return fmt::format("optimizer.groups[{}] (match = \"{}\")", entry, group.match);
}

template <typename Visit>
void for_each_tensor(const ModelShape& model, const Visit& visit) {
  for (const UnitShape& unit : model.units) {
    for (const TensorShape& tensor : unit.tensors) visit(tensor);
  }
}

// An entry without a tensor: nothing matches, or earlier entries have it all.
[[noreturn]] void refuse_entry(const std::vector<ParameterGroup>& groups, std::size_t entry,
                               const ModelShape& model) {
  std::string nearest, taken;
  std::size_t least = std::numeric_limits<std::size_t>::max();
  for_each_tensor(model, [&](const TensorShape& tensor) {
    const std::size_t distance = edit_distance(groups[entry].match, tensor.name);
    if (distance < least) {
      least = distance;
      nearest = tensor.name;
    }
    if (!taken.empty() || !matches(groups[entry], tensor.name)) return;
    const auto first = std::ranges::find_if(
        groups, [&](const ParameterGroup& group) { return matches(group, tensor.name); });
    taken = words(static_cast<std::size_t>(first - groups.begin()), *first);
  });
  if (taken.empty()) {
    fail(ErrorCode::invalid_argument, "{} matches no tensor; the nearest name is {}",
         words(entry, groups[entry]), nearest);
  }
  fail(ErrorCode::invalid_argument,
       "{} has no effect: what it matches belongs to earlier entries, first {}; the first entry that matches "
       "a tensor has it",
       words(entry, groups[entry]), taken);
}

}  // namespace

void assign_parameter_groups(const Config& config, ModelShape& model) {
  const std::vector<ParameterGroup>& groups = config.optimizer.groups;
  std::vector<bool> used(groups.size(), false);
  for (UnitShape& unit : model.units) {
    for (TensorShape& tensor : unit.tensors) {
      check(tensor.group < kDefaultGroups, "{} is in group {} already", tensor.name, tensor.group);
      const auto found = std::ranges::find_if(
          groups, [&](const ParameterGroup& group) { return matches(group, tensor.name); });
      if (found == groups.end()) continue;
      const auto entry = static_cast<std::size_t>(found - groups.begin());
      used[entry] = true;
      tensor.group += kDefaultGroups * (1 + static_cast<std::uint32_t>(entry));
      tensor.frozen = tensor.master_only = found->frozen;
    }
  }
  for (std::size_t entry = 0; entry < groups.size(); ++entry) {
    if (!used[entry]) refuse_entry(groups, entry, model);
  }
  bool trains = groups.empty();
  for_each_tensor(model, [&](const TensorShape& tensor) { trains |= !tensor.frozen && tensor.numel > 0; });
  if (!trains)
    fail(ErrorCode::invalid_argument, "optimizer.groups freezes every tensor; nothing is left to train");
}

std::vector<AdamWHyper> groups_at(const Config& config, double lr) {
  const Config::Optimizer& optimizer = config.optimizer;
  const AdamWHyper decayed{lr, optimizer.beta1, optimizer.beta2, optimizer.eps, optimizer.weight_decay};
  AdamWHyper plain = decayed;
  plain.weight_decay = 0;
  std::vector<AdamWHyper> hypers{decayed, plain};
  for (const ParameterGroup& group : optimizer.groups) {
    for (AdamWHyper hyper : {decayed, plain}) {
      hyper.lr = lr * group.lr_ratio;
      hyper.weight_decay = group.weight_decay.value_or(hyper.weight_decay);
      hypers.push_back(hyper);
    }
  }
  return hypers;
}

void log_parameter_groups(const Config& config, const ModelShape& model) {
  const std::vector<ParameterGroup>& groups = config.optimizer.groups;
  for (std::size_t entry = 0; entry < groups.size(); ++entry) {
    std::uint64_t tensors = 0, numel = 0;
    for_each_tensor(model, [&](const TensorShape& tensor) {
      if (tensor.group / kDefaultGroups != 1 + entry) return;
      ++tensors;
      numel += tensor.numel;
    });
    const ParameterGroup& group = groups[entry];
    if (group.frozen) {
      logger()->info("{}: {} tensors, {} parameters; frozen", words(entry, group), tensors, numel);
      continue;
    }
    const std::string decay = group.weight_decay ? fmt::format(", weight decay {}", *group.weight_decay) : "";
    logger()->info("{}: {} tensors, {} parameters; learning rate x {}{}", words(entry, group), tensors, numel,
                   group.lr_ratio, decay);
  }
}

}  // namespace terrace
