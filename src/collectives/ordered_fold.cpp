#include "src/collectives/ordered_fold.h"

#include <algorithm>
#include <atomic>

#include "kernels/cpu/cast.h"
#include "kernels/cpu/gradient.h"
#include "src/base/parallel_for.h"
#include "src/base/units.h"

namespace terrace {
namespace {

// A tile of the accumulator stays in the second-level cache while the contributions pass over it.
constexpr std::uint64_t kTileNumel = 4 * kBlockNumel;

// The last round brought nothing: what earlier rounds have summed is rounded all the same.
bool round_in_place(DType dtype, float* sum, std::size_t numel, double* block_sums) {
  constexpr FoldPosition kOnly{.first = true, .last = true};
  if (dtype == DType::f32) return fold(sum, dtype, sum, numel, kOnly, block_sums);
  bool finite = true;
  alignas(std::uint16_t) std::byte rounded[kBlockNumel * sizeof(std::uint16_t)];
  for (std::size_t begin = 0; begin < numel; begin += kBlockNumel) {
    const std::size_t count = std::min<std::size_t>(kBlockNumel, numel - begin);
    cast_to(dtype, sum + begin, rounded, count);
    finite = fold(rounded, dtype, sum + begin, count, kOnly, block_sums + begin / kBlockNumel) && finite;
  }
  return finite;
}

bool fold_tile(std::span<const std::byte* const> contributions, DType dtype, std::uint64_t begin,
               std::span<float> sum, FoldRound round, double* block_sums) {
  if (contributions.empty()) return round_in_place(dtype, sum.data(), sum.size(), block_sums);
  bool finite = true;
  for (std::size_t k = 0; k < contributions.size(); ++k) {
    const FoldPosition position{.first = !round.started && k == 0,
                                .last = round.last && k + 1 == contributions.size()};
    finite = fold(contributions[k] + begin * dtype_bytes(dtype), dtype, sum.data(), sum.size(), position,
                  position.last ? block_sums : nullptr) &&
             finite;
  }
  return finite;
}

}  // namespace

FoldResult ordered_fold(std::span<const std::byte* const> contributions, DType dtype,
                        std::span<float> accumulator, FoldRound round, std::span<double> block_sums) {
  FoldResult result{.contributions = static_cast<int>(contributions.size()), .finite = true};
  if (contributions.empty() && !(round.started && round.last)) return result;
  std::atomic<bool> finite{true};
  parallel_for(div_up(accumulator.size(), kTileNumel), [&](std::size_t tile) {
    const std::uint64_t begin = tile * kTileNumel;
    const std::uint64_t numel = std::min<std::uint64_t>(kTileNumel, accumulator.size() - begin);
    double* const sums = round.last ? block_sums.data() + begin / kBlockNumel : nullptr;
    if (!fold_tile(contributions, dtype, begin, accumulator.subspan(begin, numel), round, sums)) {
      finite = false;
    }
  });
  result.finite = finite;
  return result;
}

}  // namespace terrace
