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
  const std::size_t pieces = costs.forward_s.size();
  const bool others = costs.other_disk_s.empty() || costs.other_disk_s.size() == pieces;
  if (costs.backward_s.size() != pieces || costs.state_bytes.size() != pieces || !others) {
    fail(ErrorCode::invalid_argument,
         "forward, backward, state and other traffic of {}, {}, {} and {} pieces: wanted one number of them",
         pieces, costs.backward_s.size(), costs.state_bytes.size(), costs.other_disk_s.size());
  }
}

void close(const StepCosts& costs, double compute_s, BoundParts& parts) {
  parts.closed_by_disk = costs.closed_disk_s > compute_s;
  parts.closed_s = std::max(compute_s, costs.closed_disk_s);
  parts.bound_s = parts.closed_s + parts.open_s;
  parts.by_busiest_lane = costs.busiest_lane_s > parts.bound_s;
  parts.bound_s = std::max(parts.bound_s, costs.busiest_lane_s);
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
                         std::uint64_t contributions_per_rank, Reduction reduction) {
  const std::uint64_t others = part(padded_numel, ranks) * (ranks - 1);
  if (reduction == Reduction::last) return 2 * others;
  return stage == Stage::parameters ? 3 * contributions_per_rank * others
                                    : (contributions_per_rank + 1) * others;
}

std::uint64_t hybrid_state_bytes(std::uint64_t padded_numel, std::uint64_t shards) {
  return 16 * part(padded_numel, shards);
}

std::uint64_t hybrid_sent_numel(std::uint64_t padded_numel, std::uint64_t shards, std::uint64_t replicas,
                                std::uint64_t contributions_per_rank, Reduction reduction) {
  const std::uint64_t ranks = shards * replicas;
  const std::uint64_t own = part(padded_numel, ranks);
  const std::uint64_t within = part(padded_numel, shards) * (shards - 1);
  const std::uint64_t round =
      reduction == Reduction::hierarchical ? within + own * (replicas - 1) : own * (ranks - 1);
  const std::uint64_t contributions = contributions_per_rank * round;
  const std::uint64_t sums = own * (replicas - 1);
  const std::uint64_t gathers = 2 * contributions_per_rank * part(padded_numel, shards) * (shards - 1);
  return contributions + sums + gathers;
}

std::uint64_t kept_whole_bytes(std::uint64_t kept_numel, std::uint64_t shards) {
  return 2 * part(kept_numel, shards) * (shards - 1);
}

std::uint64_t kept_whole_unsent_numel(std::uint64_t kept_numel, std::uint64_t shards,
                                      std::uint64_t contributions_per_rank) {
  return (2 * contributions_per_rank - 1) * part(kept_numel, shards) * (shards - 1);
}

std::uint64_t optimizer_read_bytes(std::uint64_t numel) {
  return 12 * numel;
}

std::uint64_t optimizer_write_bytes(std::uint64_t numel, bool parameters_on_nvme) {
  return (parameters_on_nvme ? 14 : 12) * numel;
}

BoundParts bound_parts_with_verdict(const StepCosts& costs) {
  check_lengths(costs);
  const double m = costs.contributions;
  double left = sum(costs.forward_s);  // F_i + ... + F_n
  double states = 0;                   // Q_1 + ... + Q_i
  double others = 0;                   // likewise
  BoundParts parts;
  parts.open_s = left;
  for (std::size_t i = 0; i < costs.forward_s.size(); ++i) {
    states += costs.state_bytes[i];
    if (!costs.other_disk_s.empty()) others += costs.other_disk_s[i];
    const double disk = disk_s(costs, states) + others;
    if (disk + left > parts.open_s) {
      parts.open_s = disk + left;
      parts.piece = i;
      parts.piece_disk_s = disk;
    }
    left -= costs.forward_s[i];
  }
  close(costs, m * sum(costs.backward_s) + (m - 1) * sum(costs.forward_s), parts);
  return parts;
}

BoundParts bound_parts_without_verdict(const StepCosts& costs) {
  check_lengths(costs);
  const double m = costs.contributions;
  double done = 0;  // B_n + ... + B_i
  std::vector<double> states(costs.state_bytes), others(costs.other_disk_s);
  std::partial_sum(states.begin(), states.end(), states.begin());  // Q_i + ... + Q_1
  std::partial_sum(others.begin(), others.end(), others.begin());
  BoundParts parts;
  parts.open_s = sum(costs.backward_s);
  for (std::size_t i = costs.forward_s.size(); i-- > 0;) {
    done += costs.backward_s[i];
    const double disk = disk_s(costs, states[i]) + (others.empty() ? 0 : others[i]);
    if (done + disk > parts.open_s) {
      parts.open_s = done + disk;
      parts.piece = i;
      parts.piece_disk_s = disk;
    }
  }
  close(costs, m * sum(costs.forward_s) + (m - 1) * sum(costs.backward_s), parts);
  return parts;
}

double step_bound_with_verdict_s(const StepCosts& costs) {
  return bound_parts_with_verdict(costs).bound_s;
}

double step_bound_without_verdict_s(const StepCosts& costs) {
  return bound_parts_without_verdict(costs).bound_s;
}

}  // namespace terrace
