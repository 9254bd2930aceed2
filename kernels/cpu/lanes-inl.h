// Sixteen lanes at once, the same on every target: kernels are written against these and compiled once per
// target. Element i of an array belongs to lane i mod 16, and every reduction over lanes is one fixed tree;
// with a fused multiply-add only where fma() stands, all targets give the same bits (the payload of a NaN
// excepted).
//
//   F32, F64          16 floats, 16 doubles        U32   16 unsigned words (bits of floats, or integers)
//   M32               16 truth values: a < b, a <= b, a == b (all false on NaN), &, |, all_true(m)
//   set(x), set_bits(x), set64(x)                  all lanes x
//   load(p), store(p, a)                           16 elements of float, bf16, f16 (as F32) or double; any
//   alignment load_n(p, n, fill), store_n(p, a, n)           the first n <= 16 elements, memory past them
//   untouched
//   + - * /   fma(a, b, c) = a * b + c rounded once   sqrt(a)   both correctly rounded
//   max(a, b) = a > b ? a : b   min(a, b) = a < b ? a : b   (b when one is a NaN)
//   select(m, a, b), abs(a), negate(a), is_finite(a)
//   round_to<T>(a)                                 rounded to T and widened again; T bf16, f16 or float
//   bits(a), from_bits(u), shift_left<k>(u), shift_right<k>(u), shift_right_signed<k>(u), signed_to_float(u)
//   promote(a)                                     F32 -> F64
//   sum_lanes(a), max_lanes(a)                     the fixed tree: lane i with i + 8, then + 4, + 2, + 1
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/simd_targets.h"
// After simd_targets.h:
#include <hwy/highway.h>

#include "src/base/dtype.h"

#if defined(TERRACE_LANES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_LANES_INL_H
#undef TERRACE_LANES_INL_H
#else
#define TERRACE_LANES_INL_H
#endif

HWY_BEFORE_NAMESPACE();
namespace terrace::HWY_NAMESPACE {

inline constexpr std::size_t kLanes = 16;

#if HWY_TARGET == HWY_STATIC_TARGET
#include "kernels/cpu/lanes_scalar.inc"
#else
#include "kernels/cpu/lanes_simd.inc"
#endif

HWY_INLINE F32 negate(F32 a) {
  return from_bits(bits(a) ^ set_bits(0x80000000u));
}
HWY_INLINE F32 abs(F32 a) {
  return from_bits(bits(a) & set_bits(0x7FFFFFFFu));
}
HWY_INLINE M32 is_finite(F32 a) {
  return abs(a) <= set(3.40282346638528859811704183484516925e+38f);
}

template <typename T>
HWY_INLINE F32 round_to(F32 a) {
  if constexpr (std::is_same_v<T, bf16>) {
    return round_to_bf16(a);
  } else if constexpr (std::is_same_v<T, f16>) {
    return round_to_f16(a);
  } else {
    static_assert(std::is_same_v<T, float>);
    return a;
  }
}

// Tails go through a buffer of one bundle, or masked registers for fp32 where there are any: nothing past the
// end is read or written.
template <typename T>
HWY_INLINE F32 load_n(const T* p, std::size_t n, float fill = 0.0f) {
  if (n >= kLanes) return load(p);
#if HWY_TARGET != HWY_STATIC_TARGET
  if constexpr (sizeof(T) == 4) return load_masked(p, n, fill);
#endif
  alignas(64) T buffer[kLanes];
  const T other = from_float<T>(fill);
  for (std::size_t i = 0; i < kLanes; ++i) buffer[i] = i < n ? p[i] : other;
  return load(static_cast<const T*>(buffer));
}
template <typename T>
HWY_INLINE void store_n(T* p, F32 a, std::size_t n) {
  if (n >= kLanes) {
    store(p, a);
    return;
  }
#if HWY_TARGET != HWY_STATIC_TARGET
  if constexpr (sizeof(T) == 4) {
    store_masked(p, a, n);
    return;
  }
#endif
  alignas(64) T buffer[kLanes];
  store(buffer, a);
  for (std::size_t i = 0; i < n; ++i) p[i] = buffer[i];
}

template <typename T>
HWY_INLINE T tree_sum(const T* lane) {
  T s[8];
  for (int i = 0; i < 8; ++i) s[i] = lane[i] + lane[i + 8];
  for (int i = 0; i < 4; ++i) s[i] = s[i] + s[i + 4];
  return (s[0] + s[2]) + (s[1] + s[3]);
}
HWY_INLINE float sum_lanes(F32 a) {
  alignas(64) float lane[kLanes];
  store(lane, a);
  return tree_sum(lane);
}
HWY_INLINE double sum_lanes(F64 a) {
  alignas(64) double lane[kLanes];
  store(lane, a);
  return tree_sum(lane);
}
HWY_INLINE float max_lanes(F32 a) {
  alignas(64) float lane[kLanes];
  store(lane, a);
  for (int step = 8; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) lane[i] = lane[i] > lane[i + step] ? lane[i] : lane[i + step];
  }
  return lane[0];
}

}  // namespace terrace::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
