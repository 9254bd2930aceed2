#include "kernels/cpu/simd.h"

#include <cstdlib>
#include <string>

#include "kernels/cpu/simd_targets.h"
// After simd_targets.h:
#include <hwy/targets.h>

#include "src/base/fail.h"

namespace terrace {

namespace simd_detail {
std::atomic<int> chosen{kUnset};

SimdTarget choose_first() {
  const SimdTarget target = choose_simd_target(std::getenv("TERRACE_SIMD"));
  chosen.store(static_cast<int>(target), std::memory_order_relaxed);
  return target;
}
}  // namespace simd_detail

std::string_view simd_target_name(SimdTarget target) {
  switch (target) {
    case SimdTarget::scalar:
      return "scalar";
    case SimdTarget::avx2:
      return "avx2";
    case SimdTarget::avx512:
      return "avx512";
  }
  return "?";
}

std::optional<SimdTarget> parse_simd_target(std::string_view name) {
  for (const SimdTarget target : {SimdTarget::scalar, SimdTarget::avx2, SimdTarget::avx512}) {
    if (name == simd_target_name(target)) return target;
  }
  return std::nullopt;
}

std::vector<SimdTarget> supported_simd_targets() {
  [[maybe_unused]] const auto bits = hwy::SupportedTargets();
  std::vector<SimdTarget> targets{SimdTarget::scalar};
#if HWY_TARGETS & HWY_AVX2
  if (bits & HWY_AVX2) targets.push_back(SimdTarget::avx2);
#endif
#if HWY_TARGETS & HWY_AVX3
  if (bits & HWY_AVX3) targets.push_back(SimdTarget::avx512);
#endif
  return targets;
}

namespace {
void require_supported(SimdTarget target, std::string_view asked_by) {
  std::string names;
  for (const SimdTarget supported : supported_simd_targets()) {
    if (supported == target) return;
    names += names.empty() ? "" : ", ";
    names += simd_target_name(supported);
  }
  fail(ErrorCode::unsupported, "{}: this processor does not have '{}'; it has {}", asked_by,
       simd_target_name(target), names);
}
}  // namespace

SimdTarget choose_simd_target(const char* request) {
  if (request == nullptr || *request == '\0') return supported_simd_targets().back();
  const auto target = parse_simd_target(request);
  if (!target) {
    fail(ErrorCode::invalid_argument, "TERRACE_SIMD is '{}'; wanted scalar, avx2 or avx512", request);
  }
  require_supported(*target, "TERRACE_SIMD");
  return *target;
}

void set_simd_target(SimdTarget target) {
  require_supported(target, "set_simd_target");
  simd_detail::chosen.store(static_cast<int>(target), std::memory_order_relaxed);
}

}  // namespace terrace
