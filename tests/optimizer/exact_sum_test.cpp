#include "src/optimizer/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "terrace/error.h"

namespace terrace {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kMax = std::numeric_limits<double>::max();
constexpr double kTiny = std::numeric_limits<double>::denorm_min();

// A number as its binary digits, the lowest worth 2^-1074; added digit by digit. Slow and obvious.
class Digits {
 public:
  Digits() : digits_(2300, 0) {}
  explicit Digits(double value) : Digits() {
    int exponent = 0;
    double rest = std::frexp(value, &exponent);  // value = rest * 2^exponent, rest in [1/2, 1)
    for (int i = exponent - 1; rest > 0; --i) {
      rest *= 2;
      if (rest >= 1) {
        digits_[static_cast<std::size_t>(i + 1074)] = 1;
        rest -= 1;
      }
    }
  }
  void add(const Digits& other) {
    int carry = 0;
    for (std::size_t i = 0; i < digits_.size(); ++i) {
      const int sum = digits_[i] + other.digits_[i] + carry;
      digits_[i] = static_cast<char>(sum & 1);
      carry = sum >> 1;
    }
  }
  // this - other, which is not larger.
  Digits minus(const Digits& other) const {
    Digits result = *this;
    int borrow = 0;
    for (std::size_t i = 0; i < digits_.size(); ++i) {
      const int difference = digits_[i] - other.digits_[i] - borrow;
      result.digits_[i] = static_cast<char>(difference & 1);
      borrow = difference < 0 ? 1 : 0;
    }
    return result;
  }
  friend bool operator<(const Digits& a, const Digits& b) {
    return std::lexicographical_compare(a.digits_.rbegin(), a.digits_.rend(), b.digits_.rbegin(),
                                        b.digits_.rend());
  }
  friend bool operator==(const Digits& a, const Digits& b) { return a.digits_ == b.digits_; }

 private:
  std::vector<char> digits_;
};

Digits distance(const Digits& a, const Digits& b) {
  return a < b ? b.minus(a) : a.minus(b);
}

// `got` is the double nearest to the sum of `values`, ties to even.
void expect_nearest(double got, const std::vector<double>& values) {
  Digits sum;
  for (const double value : values) sum.add(Digits(value));
  ASSERT_TRUE(std::isfinite(got));
  const Digits error = distance(sum, Digits(got));
  const bool even = (std::bit_cast<std::uint64_t>(got) & 1) == 0;
  const double above = std::nextafter(got, kInfinity);
  if (std::isfinite(above)) {
    const Digits other = distance(sum, Digits(above));
    EXPECT_TRUE(error < other || (error == other && even)) << got;
  }
  if (got > 0) {
    const Digits other = distance(sum, Digits(std::nextafter(got, 0.0)));
    EXPECT_TRUE(error < other || (error == other && even)) << got;
  }
}

double exact_sum(const std::vector<double>& values) {
  ExactSum sum;
  for (const double value : values) sum.add(value);
  return sum.to_double();
}

TEST(ExactSum, FewValues) {
  EXPECT_EQ(ExactSum().to_double(), 0.0);
  EXPECT_EQ(exact_sum({0.0, -0.0}), 0.0);
  for (const double value : {kTiny, 2 * kTiny, 3 * kTiny, 2.2250738585072014e-308, 2.2250738585072009e-308,
                             1e-300, 1.0, 1.0 / 3.0, 4503599627370497.0, 1e300, kMax}) {
    EXPECT_EQ(exact_sum({value}), value);
    EXPECT_EQ(exact_sum({value, 0.0, 0.0}), value);
  }
  EXPECT_EQ(exact_sum({1.0, 2.0, 3.0}), 6.0);
  EXPECT_EQ(exact_sum({1e300, 1e-300, kTiny}), 1e300);
}

TEST(ExactSum, RoundsOnceToNearestEven) {
  const double half = std::ldexp(1.0, -53);
  EXPECT_EQ(exact_sum({1.0, half}), 1.0);                              // a tie to even, down
  EXPECT_EQ(exact_sum({1.0, half, kTiny}), std::nextafter(1.0, 2.0));  // just above the tie
  EXPECT_EQ(exact_sum({1.0, half, half}), std::nextafter(1.0, 2.0));
  const double odd = std::nextafter(1.0, 2.0);
  EXPECT_EQ(exact_sum({odd, half}), std::nextafter(odd, 2.0));  // a tie to even, up
  EXPECT_EQ(exact_sum({kMax, kMax}), kInfinity);
  EXPECT_EQ(exact_sum({kMax, std::ldexp(1.0, 969)}), kMax);       // below half a unit
  EXPECT_EQ(exact_sum({kMax, std::ldexp(1.0, 970)}), kInfinity);  // the tie rounds up
  const double smallest_normal = 2.2250738585072014e-308;
  EXPECT_EQ(exact_sum({std::nextafter(smallest_normal, 0.0), kTiny}), smallest_normal);
}

TEST(ExactSum, IsTheNearestDoubleInEveryOrder) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 120; ++round) {
    std::vector<double> values(1 + random() % 60);
    const int width = round % 3 == 0 ? 2000 : round % 3 == 1 ? 120 : 4;
    const int lowest = round % 2 == 0 ? 0 : 900;
    for (double& value : values) {
      const auto exponent =
          static_cast<std::uint64_t>(lowest + static_cast<int>(random() % static_cast<unsigned>(width)));
      value = std::bit_cast<double>((std::min<std::uint64_t>(exponent, 2030) << 52) | (random() >> 12));
    }
    const double want = exact_sum(values);
    expect_nearest(want, values);
    for (int shuffle = 0; shuffle < 5; ++shuffle) {
      std::shuffle(values.begin(), values.end(), random);
      ASSERT_EQ(exact_sum(values), want);
      ExactSum parts[3];
      for (const double value : values) parts[random() % 3].add(value);
      ExactSum merged;
      for (const ExactSum& part : parts) merged.merge(part);
      ASSERT_EQ(merged.to_double(), want);
    }
  }
}

TEST(ExactSum, ManyAdditionsLoseNothing) {
  ExactSum sum;
  for (int i = 0; i < 3'000'000; ++i) sum.add(0.1);
  // 0.1 as a double is 3602879701896397 * 2^-55; times 3,000,000 in 128 bits, rounded by the conversion.
  const unsigned __int128 exact = static_cast<unsigned __int128>(3602879701896397ull) * 3'000'000u;
  EXPECT_EQ(sum.to_double(), std::ldexp(static_cast<double>(exact), -55));
  ExactSum doubled = sum;
  for (int i = 0; i < 40; ++i) {
    const ExactSum copy = doubled;
    doubled.merge(copy);
  }
  EXPECT_EQ(doubled.to_double(), std::ldexp(sum.to_double(), 40));
}

TEST(ExactSum, ANonFiniteValueIsNoted) {
  for (const double bad : {kInfinity, std::nan("")}) {
    ExactSum sum;
    sum.add(1.0);
    EXPECT_TRUE(sum.finite());
    sum.add(bad);
    sum.add(1.0);
    EXPECT_FALSE(sum.finite());
    EXPECT_EQ(sum.to_double(), kInfinity);
    ExactSum other;
    other.merge(sum);
    EXPECT_FALSE(other.finite());
  }
}

TEST(ExactSum, ANegativeValueIsRefused) {
  ExactSum sum;
  EXPECT_THROW(sum.add(-1e-300), Error);
}

}  // namespace
}  // namespace terrace
