// Which instruction set the kernels run on. Every target gives the same bits; they differ in speed only.
#pragma once

#include <atomic>
#include <optional>
#include <string_view>
#include <vector>

namespace terrace {

enum class SimdTarget : int { scalar, avx2, avx512 };

// "scalar", "avx2", "avx512": the values of the environment variable TERRACE_SIMD.
std::string_view simd_target_name(SimdTarget target);
std::optional<SimdTarget> parse_simd_target(std::string_view name);

// What this processor and system can run, slowest first; scalar is always there.
std::vector<SimdTarget> supported_simd_targets();

// The target for `request` (the value of TERRACE_SIMD; null or empty = the best one supported). Throws
// invalid_argument for an unknown name, unsupported for one that this processor does not have.
SimdTarget choose_simd_target(const char* request);

// Forces a target from now on (for tests and benchmarks). Throws unsupported. Not to be called while kernels
// run.
void set_simd_target(SimdTarget target);

namespace simd_detail {
inline constexpr int kUnset = -1;
extern std::atomic<int> chosen;
SimdTarget choose_first();
}  // namespace simd_detail

// The target in use. The first call reads TERRACE_SIMD and throws as choose_simd_target does. Thread-safe;
// costs one relaxed load.
inline SimdTarget simd_target() {
  const int target = simd_detail::chosen.load(std::memory_order_relaxed);
  if (target == simd_detail::kUnset) [[unlikely]]
    return simd_detail::choose_first();
  return static_cast<SimdTarget>(target);
}

}  // namespace terrace
