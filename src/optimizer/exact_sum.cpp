#include "src/optimizer/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "src/base/fail.h"

namespace terrace {
namespace {
constexpr std::uint64_t kLimbMask = 0xFFFFFFFFu;
// A limb grows by less than 1.5 * 2^32 an addition, so 2^31 of them fit in 64 bits.
constexpr std::uint32_t kAdditionsBetweenCarries = std::uint32_t{1} << 31;
}  // namespace

void ExactSum::add(double value) {
  if (!std::isfinite(value)) {
    finite_ = false;
    return;
  }
  check(!(value < 0), "ExactSum::add of the negative value {}", value);
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const auto exponent = static_cast<int>((bits >> 52) & 0x7FF);
  const std::uint64_t fraction = bits & ((std::uint64_t{1} << 52) - 1);
  // value = mantissa * 2^(position - 1074)
  const std::uint64_t mantissa = exponent == 0 ? fraction : fraction | (std::uint64_t{1} << 52);
  const int position = exponent == 0 ? 0 : exponent - 1;
  const int limb = position / 32;
  const int shift = position % 32;
  const std::uint64_t low = (mantissa & kLimbMask) << shift;  // below 2^63
  const std::uint64_t high = (mantissa >> 32) << shift;       // below 2^52
  limbs_[limb] += low & kLimbMask;
  limbs_[limb + 1] += (low >> 32) + (high & kLimbMask);
  limbs_[limb + 2] += high >> 32;
  if (++additions_ == kAdditionsBetweenCarries) carry();
}

void ExactSum::merge(const ExactSum& other) {
  ExactSum carried = other;
  carried.carry();
  carry();
  for (int i = 0; i < kLimbs; ++i) limbs_[i] += carried.limbs_[i];
  additions_ = 1;
  finite_ = finite_ && other.finite_;
}

std::array<std::uint64_t, ExactSum::kNumbers> ExactSum::numbers() const {
  ExactSum carried = *this;
  carried.carry();
  std::array<std::uint64_t, kNumbers> numbers{};
  std::copy(carried.limbs_.begin(), carried.limbs_.end(), numbers.begin());
  numbers[kLimbs] = finite_ ? 0 : 1;
  return numbers;
}

ExactSum ExactSum::of_numbers(const std::array<std::uint64_t, kNumbers>& added) {
  ExactSum sum;
  std::copy(added.begin(), added.begin() + kLimbs, sum.limbs_.begin());
  sum.finite_ = added[kLimbs] == 0;
  sum.carry();
  return sum;
}

void ExactSum::carry() {
  for (int i = 0; i + 1 < kLimbs; ++i) {
    limbs_[i + 1] += limbs_[i] >> 32;
    limbs_[i] &= kLimbMask;
  }
  additions_ = 0;
}

double ExactSum::to_double() const {
  if (!finite_) return std::numeric_limits<double>::infinity();
  ExactSum sum = *this;
  sum.carry();
  int top = kLimbs - 1;
  while (top >= 0 && sum.limbs_[top] == 0) --top;
  if (top < 0) return 0.0;
  const auto bit = [&](int position) -> std::uint64_t {
    return position < 0 ? 0 : (sum.limbs_[position / 32] >> (position % 32)) & 1;
  };
  const int top_bit = 32 * top + 63 - std::countl_zero(sum.limbs_[top]);
  // 53 bits from the top one down; where the sum is subnormal, all there are.
  const int low_bit = top_bit >= 52 ? top_bit - 52 : 0;
  std::uint64_t mantissa = 0;
  for (int position = top_bit; position >= low_bit; --position) mantissa = 2 * mantissa + bit(position);
  bool below_half = false;
  for (int position = low_bit - 2; position >= 0 && !below_half; --position) below_half = bit(position) != 0;
  if (bit(low_bit - 1) != 0 && (below_half || (mantissa & 1) != 0)) ++mantissa;
  return std::ldexp(static_cast<double>(mantissa), low_bit - 1074);  // exact, or infinity
}

}  // namespace terrace
