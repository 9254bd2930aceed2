#include "src/base/random.h"

#include <cmath>

#include "src/base/hash.h"

namespace terrace {

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

std::uint64_t random_bits(std::uint64_t seed, std::uint64_t name_hash, std::uint64_t element,
                          std::uint64_t step) {
  const std::uint64_t stream[3] = {seed, name_hash, step};
  const std::uint64_t key = hash64(stream, sizeof(stream));
  const auto out =
      philox4x32({static_cast<std::uint32_t>(element), static_cast<std::uint32_t>(element >> 32), 0, 0},
                 {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)});
  return (std::uint64_t{out[1]} << 32) | out[0];
}

double portable_log(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);  // x = m * 2^exponent, m in [0.5, 1)
  if (m < 0.70710678118654752440) {
    m *= 2;
    --exponent;
  }
  const double s = (m - 1) / (m + 1);  // log(m) = 2 atanh(s), |s| < 0.1716
  const double s2 = s * s;
  double series = 0;
  for (int k = 21; k >= 1; k -= 2) series = series * s2 + 1.0 / k;
  return 2 * s * series + exponent * 0.69314718055994530942;
}

double inverse_normal(double p) {
  static constexpr double a[] = {-3.969683028665376e+01, 2.209460984245205e+02,  -2.759285104469687e+02,
                                 1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00};
  static constexpr double b[] = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02,
                                 6.680131188771972e+01, -1.328068155288572e+01};
  static constexpr double c[] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                                 -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00};
  static constexpr double d[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00,
                                 3.754408661907416e+00};
  const double low = 0.02425;
  if (p < low || p > 1 - low) {
    const double tail = p < low ? p : 1 - p;
    const double q = std::sqrt(-2 * portable_log(tail));
    const double x = (((((c[0] * q + c[1]) * q + c[2]) * q + c[3]) * q + c[4]) * q + c[5]) /
                     ((((d[0] * q + d[1]) * q + d[2]) * q + d[3]) * q + 1);
    return p < low ? x : -x;
  }
  const double q = p - 0.5;
  const double r = q * q;
  return (((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * q /
         (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1);
}

double random_normal(std::uint64_t seed, std::uint64_t name_hash, std::uint64_t element, std::uint64_t step) {
  const std::uint64_t bits = random_bits(seed, name_hash, element, step);
  return inverse_normal((static_cast<double>(bits >> 11) + 0.5) * 0x1p-53);
}

}  // namespace terrace
