// A sum of doubles that does not depend on their order: a fixed-point number wide enough for every finite
// double.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace terrace {

// Sums non-negative doubles exactly; block sums of squares go through it, so that neither the chunk size nor
// the number of ranks shows in a norm. Thread contract: one thread at a time; merge the sums of several
// threads. Cost: 552 bytes and a few ns an addition.
class ExactSum {
 public:
  // Adds a value. A non-finite one is only noted; a negative one is our own bug (throws internal).
  void add(double value);
  // Adds another sum, as if its values had been added here.
  void merge(const ExactSum& other);
  // The exact sum rounded once to nearest even; infinity when it is larger than a double or a non-finite
  // value was added.
  double to_double() const;
  // Whether every value added was finite.
  bool finite() const { return finite_; }

  // The sum as numbers of which up to 2^31 of several sums may be added place by place (an all-reduce of
  // integers), and the sum of them all again.
  static constexpr std::size_t kNumbers = 69;
  std::array<std::uint64_t, kNumbers> numbers() const;
  static ExactSum of_numbers(const std::array<std::uint64_t, kNumbers>& added);

 private:
  // Bit i of limb j counts 2^(32 * j + i - 1074). Each limb keeps 32 bits between carries, the rest is head
  // room.
  static constexpr int kLimbs = 68;
  void carry();

  std::array<std::uint64_t, kLimbs> limbs_{};
  std::uint32_t additions_ = 0;  // since the last carry
  bool finite_ = true;
};

}  // namespace terrace
