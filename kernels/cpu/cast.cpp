#include "kernels/cpu/cast.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cast.cpp"
#include "kernels/cpu/simd_targets.h"
// After simd_targets.h:
#include <hwy/foreach_target.h>

#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::HWY_NAMESPACE {

template <typename In, typename Out>
void cast_loop(const In* in, Out* out, std::size_t numel) {
  std::size_t i = 0;
  for (; i + kLanes <= numel; i += kLanes) store(out + i, load(in + i));
  if (i < numel) store_n(out + i, load_n(in + i, numel - i), numel - i);
}

}  // namespace terrace::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {

void cast(const float* in, bf16* out, std::size_t numel) {
  TERRACE_DISPATCH(cast_loop<float, bf16>)(in, out, numel);
}
void cast(const float* in, f16* out, std::size_t numel) {
  TERRACE_DISPATCH(cast_loop<float, f16>)(in, out, numel);
}
void cast(const bf16* in, float* out, std::size_t numel) {
  TERRACE_DISPATCH(cast_loop<bf16, float>)(in, out, numel);
}
void cast(const f16* in, float* out, std::size_t numel) {
  TERRACE_DISPATCH(cast_loop<f16, float>)(in, out, numel);
}
void cast_to(DType dtype, const float* in, void* out, std::size_t numel) {
  switch (dtype) {
    case DType::bf16:
      return cast(in, static_cast<bf16*>(out), numel);
    case DType::f16:
      return cast(in, static_cast<f16*>(out), numel);
    case DType::f32:
      if (numel > 0) std::memcpy(out, in, numel * sizeof(float));
  }
}

}  // namespace terrace
#endif
