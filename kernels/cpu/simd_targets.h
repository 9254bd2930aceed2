// What Highway compiles: AVX2, AVX3 (= AVX-512) and one baseline pass, in which our own scalar lanes stand in
// for Highway's. Include before any header of Highway.
#pragma once

#ifdef HIGHWAY_HWY_DETECT_TARGETS_H_
#error "include kernels/cpu/simd_targets.h before Highway"
#endif
#define HWY_BASELINE_TARGETS HWY_BASELINE_SCALAR
#define HWY_DISABLED_TARGETS (~(HWY_SCALAR | HWY_EMU128 | HWY_AVX2 | HWY_AVX3))

#include <hwy/detect_targets.h>

#include "kernels/cpu/simd.h"

// TERRACE_DISPATCH(function)(arguments): the function as compiled for simd_target(). Use it once per outer
// call, after HWY_ONCE, in namespace terrace. `function` may be a template with its arguments.
#if HWY_TARGETS & HWY_AVX2
#define TERRACE_DISPATCH(...)                                 \
  (simd_target() == SimdTarget::avx512 ? &N_AVX3::__VA_ARGS__ \
   : simd_target() == SimdTarget::avx2 ? &N_AVX2::__VA_ARGS__ \
                                       : &HWY_NAMESPACE::__VA_ARGS__)
#else
#define TERRACE_DISPATCH(...) (&HWY_NAMESPACE::__VA_ARGS__)
#endif
