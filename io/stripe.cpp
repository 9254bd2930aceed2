#include "io/stripe.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "src/base/fail.h"
#include "src/base/units.h"

namespace terrace {
namespace {

constexpr std::uint64_t kBlockBytes = 4096;

// The path that would be least full with `bytes` more; none when no path has room.
std::optional<std::uint32_t> emptiest(std::span<const StripePath> paths, std::span<const std::uint64_t> used,
                                      std::uint64_t bytes) {
  std::optional<std::uint32_t> best;
  double best_fill = std::numeric_limits<double>::infinity();
  for (std::uint32_t p = 0; p < paths.size(); ++p) {
    const std::uint64_t size = paths[p].size_bytes;
    if (used[p] > size || bytes > size - used[p]) continue;
    const double fill = size == 0 ? 0 : static_cast<double>(used[p] + bytes) / static_cast<double>(size);
    if (fill < best_fill) {
      best_fill = fill;
      best = p;
    }
  }
  return best;
}

bool place(std::span<const StripePath> paths, std::span<const std::uint64_t> extent_bytes,
           std::span<const std::size_t> order, StripePlan& plan) {
  plan.places.assign(extent_bytes.size(), {});
  plan.used_bytes.assign(paths.size(), 0);
  for (const std::size_t e : order) {
    const std::uint64_t bytes = round_up(extent_bytes[e], kBlockBytes);
    const auto path = emptiest(paths, plan.used_bytes, bytes);
    if (!path) return false;
    plan.places[e] = {*path, plan.used_bytes[*path]};
    plan.used_bytes[*path] += bytes;
  }
  return true;
}

}  // namespace

StripePlan plan_stripes(std::span<const StripePath> paths, std::span<const std::uint64_t> extent_bytes) {
  StripePlan plan;
  std::vector<std::size_t> order(extent_bytes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (place(paths, extent_bytes, order, plan)) return plan;
  // Tight: large ones first leaves the fewest gaps.
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return extent_bytes[a] > extent_bytes[b]; });
  if (place(paths, extent_bytes, order, plan)) return plan;

  std::uint64_t wanted = 0, largest = 0;
  for (const std::uint64_t bytes : extent_bytes) {
    wanted += round_up(bytes, kBlockBytes);
    largest = std::max(largest, round_up(bytes, kBlockBytes));
  }
  std::string budgets;
  for (const StripePath& path : paths) {
    budgets += fmt::format("{}{}: {} ({} bytes)", budgets.empty() ? "" : ", ", path.name,
                           format_bytes(path.size_bytes), path.size_bytes);
  }
  fail(ErrorCode::does_not_fit,
       "{} extents of {} bytes in all, the largest {}, do not fit the paths' budgets: {}",
       extent_bytes.size(), wanted, largest, budgets.empty() ? "no path is given" : budgets);
}

}  // namespace terrace
