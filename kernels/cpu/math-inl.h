// exp, tanh and log of sixteen floats, the same bits on every target: one polynomial each, with fused
// multiply-adds exactly where fma() stands. Error below 2 ulp (exp, log) and 4 ulp (tanh) over the whole
// range; results below the normal range are rounded once. A NaN gives a NaN. Polynomials: S. L. Moshier,
// Cephes (expf, logf).
#include "kernels/cpu/lanes-inl.h"

#if defined(TERRACE_MATH_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_MATH_INL_H
#undef TERRACE_MATH_INL_H
#else
#define TERRACE_MATH_INL_H
#endif

HWY_BEFORE_NAMESPACE();
namespace terrace::HWY_NAMESPACE {

// x = n * ln 2 + r with |r| <= ln 2 / 2, and e^r - 1. For |x| <= 128.
struct ExpParts {
  U32 n;      // a signed integer
  F32 expm1;  // e^r - 1
};
HWY_INLINE ExpParts exp_parts(F32 x) {
  // Adding 1.5 * 2^23 leaves the rounded integer in the low bits.
  const F32 magic = set(12582912.0f);
  const F32 shifted = fma(x, set(1.44269504088896341f), magic);
  const F32 n = shifted - magic;
  F32 r = fma(n, set(-0.693359375f), x);
  r = fma(n, set(2.12194440e-4f), r);
  F32 p = fma(set(1.9875691500e-4f), r, set(1.3981999507e-3f));
  p = fma(p, r, set(8.3334519073e-3f));
  p = fma(p, r, set(4.1665795894e-2f));
  p = fma(p, r, set(1.6666665459e-1f));
  p = fma(p, r, set(5.0000001201e-1f));
  return {bits(shifted) - bits(magic), fma(p, r * r, r)};
}

// 2^n for a signed integer -126 <= n <= 127.
HWY_INLINE F32 power_of_two(U32 n) {
  return from_bits(shift_left<23>(n + set_bits(127)));
}

// 0 below -103.98, infinity above 88.73.
HWY_INLINE F32 exp(F32 x) {
  const F32 clamped = min(set(89.0f), max(set(-104.0f), x));  // in this order a NaN passes
  const ExpParts parts = exp_parts(clamped);
  const U32 half = shift_right_signed<1>(parts.n);  // in two factors, so that each is normal
  return (parts.expm1 + set(1.0f)) * power_of_two(half) * power_of_two(parts.n - half);
}

// tanh |x| = (e^2|x| - 1) / (e^2|x| + 1); the sign is copied, so -0 stays.
HWY_INLINE F32 tanh(F32 x) {
  const F32 clamped = min(set(9.25f), abs(x));
  const ExpParts parts = exp_parts(clamped + clamped);
  const F32 scale = power_of_two(parts.n);
  const F32 expm1 = fma(parts.expm1, scale, scale - set(1.0f));
  const F32 magnitude = expm1 / (expm1 + set(2.0f));
  return from_bits(bits(magnitude) | (bits(x) & set_bits(0x80000000u)));
}

// Natural logarithm: -infinity for 0, NaN below 0.
HWY_INLINE F32 log(F32 x) {
  const M32 subnormal = x < set(1.17549435e-38f);
  const F32 normal = select(subnormal, x * set(8388608.0f), x);
  // normal = m * 2^e with m in [sqrt(1/2), sqrt 2).
  const U32 root_half = set_bits(0x3F3504F3u);
  const U32 offset = bits(normal) - root_half;
  const F32 m = from_bits((offset & set_bits(0x007FFFFFu)) + root_half);
  const F32 e = signed_to_float(shift_right_signed<23>(offset)) - select(subnormal, set(23.0f), set(0.0f));
  const F32 f = m - set(1.0f);
  const F32 z = f * f;
  F32 p = fma(set(7.0376836292e-2f), f, set(-1.1514610310e-1f));
  p = fma(p, f, set(1.1676998740e-1f));
  p = fma(p, f, set(-1.2420140846e-1f));
  p = fma(p, f, set(1.4249322787e-1f));
  p = fma(p, f, set(-1.6668057665e-1f));
  p = fma(p, f, set(2.0000714765e-1f));
  p = fma(p, f, set(-2.4999993993e-1f));
  p = fma(p, f, set(3.3333331174e-1f));
  F32 low = fma(p, f * z, e * set(-2.12194440e-4f));
  low = fma(set(-0.5f), z, low);
  F32 result = fma(e, set(0.693359375f), f + low);
  const F32 infinity = from_bits(set_bits(0x7F800000u));
  result = select(x < infinity, result, x);
  result = select(x == set(0.0f), set(0.0f) - infinity, result);
  return select(x < set(0.0f), from_bits(set_bits(0x7FC00000u)), result);
}

}  // namespace terrace::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
