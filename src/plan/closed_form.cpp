#include "src/plan/closed_form.h"

#include <algorithm>
#include <numeric>

#include "src/base/fail.h"

namespace terrace {
namespace {

// numel / parts, exactly.
std::uint64_t part(std::uint64_t numel, std::uint64_t parts) {
  if (parts == 0 || numel % parts != 0) {
    fail(ErrorCode::invalid_argument, "{} elements cannot be cut into {} equal parts", numel, parts);
  }
  return numel / parts;
}

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

double disk_s(const StepCosts& costs, double state_bytes) {
  const double bytes = 2 * std::max(0.0, state_bytes - costs.state_slot_bytes);
  return bytes == 0 ? 0 : bytes / costs.disk_bytes_per_s;
}

void check_lengths(const StepCosts& costs) {
  if (costs.forward_s.size() != costs.backward_s.size() ||
      costs.forward_s.size() != costs.state_bytes.size()) {
    fail(ErrorCode::invalid_argument,
         "forward, backward and state of {}, {} and {} pieces: wanted one number of them",
         costs.forward_s.size(), costs.backward_s.size(), costs.state_bytes.size());
  }
}

}  // namespace

std::uint64_t model_state_bytes(Stage stage, std::uint64_t padded_numel, std::uint64_t ranks) {
  const std::uint64_t p = padded_numel;
  const std::uint64_t own = part(p, ranks);
  switch (stage) {
    case Stage::replicated:
      return 16 * p;
    case Stage::optimizer:
      return 4 * p + 12 * own;
    case Stage::gradients:
      return 2 * p + 14 * own;
    case Stage::parameters:
      return 16 * own;
  }
  fail(ErrorCode::invalid_argument, "stage {}; wanted 0 to 3", static_cast<int>(stage));
}

std::uint64_t sent_numel(Stage stage, std::uint64_t padded_numel, std::uint64_t ranks,
                         std::uint64_t contributions_per_rank) {
  const std::uint64_t others = part(padded_numel, ranks) * (ranks - 1);
  return stage == Stage::parameters ? 3 * contributions_per_rank * others
                                    : (contributions_per_rank + 1) * others;
}

std::uint64_t hybrid_state_bytes(std::uint64_t padded_numel, std::uint64_t shards) {
  return 16 * part(padded_numel, shards);
}

std::uint64_t hybrid_sent_numel(std::uint64_t padded_numel, std::uint64_t shards, std::uint64_t replicas,
                                std::uint64_t contributions_per_rank) {
  const std::uint64_t ranks = shards * replicas;
  const std::uint64_t own = part(padded_numel, ranks);
  const std::uint64_t contributions = contributions_per_rank * own * (ranks - 1);
  const std::uint64_t sums = own * (replicas - 1);
  const std::uint64_t gathers = 2 * contributions_per_rank * part(padded_numel, shards) * (shards - 1);
  return contributions + sums + gathers;
}

std::uint64_t optimizer_read_bytes(std::uint64_t numel) {
  return 12 * numel;
}

std::uint64_t optimizer_write_bytes(std::uint64_t numel, bool parameters_on_nvme) {
  return (parameters_on_nvme ? 14 : 12) * numel;
}

double step_bound_with_verdict_s(const StepCosts& costs) {
  check_lengths(costs);
  const double m = costs.contributions;
  double left = sum(costs.forward_s);  // F_i + ... + F_n
  double states = 0;                   // Q_1 + ... + Q_i
  double window = left;
  for (std::size_t i = 0; i < costs.forward_s.size(); ++i) {
    states += costs.state_bytes[i];
    window = std::max(window, disk_s(costs, states) + left);
    left -= costs.forward_s[i];
  }
  return std::max(costs.busiest_lane_s, m * sum(costs.backward_s) + (m - 1) * sum(costs.forward_s) + window);
}

double step_bound_without_verdict_s(const StepCosts& costs) {
  check_lengths(costs);
  const double m = costs.contributions;
  double done = 0;                         // B_n + ... + B_i
  double states = sum(costs.state_bytes);  // Q_i + ... + Q_1
  double window = 0;
  for (std::size_t i = costs.forward_s.size(); i-- > 0;) {
    done += costs.backward_s[i];
    window = std::max(window, done + disk_s(costs, states));
    states -= costs.state_bytes[i];
  }
  return std::max(costs.busiest_lane_s, m * sum(costs.forward_s) + (m - 1) * sum(costs.backward_s) + window);
}

}  // namespace terrace
