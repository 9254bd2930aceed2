#include "kernels/cpu/embedding.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/embedding.cpp"
#include "kernels/cpu/simd_targets.h"
// After simd_targets.h:
#include <hwy/foreach_target.h>

#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::HWY_NAMESPACE {

template <typename A, typename B, typename Out>
void add_arrays(const A* a, const B* b, Out* out, std::size_t numel) {
  for (std::size_t i = 0; i < numel; i += kLanes) {
    const std::size_t n = numel - i;
    store_n(out + i, load_n(a + i, n) + load_n(b + i, n), n);
  }
}

}  // namespace terrace::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {

void add_rows(const float* a, const float* b, float* out, std::size_t numel) {
  TERRACE_DISPATCH(add_arrays<float, float, float>)(a, b, out, numel);
}
void add_rows(const bf16* a, const bf16* b, bf16* out, std::size_t numel) {
  TERRACE_DISPATCH(add_arrays<bf16, bf16, bf16>)(a, b, out, numel);
}
void add_rows(const f16* a, const f16* b, f16* out, std::size_t numel) {
  TERRACE_DISPATCH(add_arrays<f16, f16, f16>)(a, b, out, numel);
}
void accumulate_row(const float* row, float* sum, std::size_t numel) {
  TERRACE_DISPATCH(add_arrays<float, float, float>)(sum, row, sum, numel);
}
void accumulate_row(const bf16* row, float* sum, std::size_t numel) {
  TERRACE_DISPATCH(add_arrays<float, bf16, float>)(sum, row, sum, numel);
}
void accumulate_row(const f16* row, float* sum, std::size_t numel) {
  TERRACE_DISPATCH(add_arrays<float, f16, float>)(sum, row, sum, numel);
}

}  // namespace terrace
#endif
