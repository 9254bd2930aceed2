// What the tests of the model's kernels share: values, distances, and one run on every target.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/simd.h"
#include "src/base/dtype.h"
#include "tests/kernels/guarded_buffer.h"

namespace terrace::testing {

using KernelTypes = ::testing::Types<float, bf16, f16>;

// Lengths around one bundle, a cache line of 16-bit values and the 64-column step.
inline const std::vector<std::size_t> kLengths{1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 129};

// The arrays end at a page that cannot be touched, and start off alignment whenever their length is odd.
template <typename T>
struct Array {
  explicit Array(std::size_t numel) : memory(numel) {
    std::memset(static_cast<void*>(memory.data()), 0xFF, numel * sizeof(T));
  }
  Array(std::size_t numel, unsigned seed, float std = 1.0f) : memory(numel) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal(0.0f, std);
    for (std::size_t i = 0; i < numel; ++i) memory[i] = from_float<T>(normal(engine));
  }
  T* data() { return memory.data(); }
  double operator[](std::size_t i) { return to_float(memory[i]); }
  std::size_t size() const { return memory.size(); }
  std::vector<std::byte> bytes() {
    const auto* at = reinterpret_cast<const std::byte*>(memory.data());
    return {at, at + memory.size() * sizeof(T)};
  }
  GuardedBuffer<T> memory;
};

// The error allowed of a value rounded to T once, after fp32 arithmetic of relative error `fp32_error`.
template <typename T>
double allowed(double want, double fp32_error = 1e-5, double scale = 1.0) {
  constexpr double kRelative = std::is_same_v<T, bf16> ? 0x1p-8 : std::is_same_v<T, f16> ? 0x1p-11 : 0;
  constexpr double kAbsolute = std::is_same_v<T, f16> ? 0x1p-25 : 0;  // half of the smallest subnormal
  return std::abs(want) * kRelative + kAbsolute + fp32_error * std::max(std::abs(want), scale);
}

// Calls run() on every target; run returns the bytes of all that it wrote, which must be the scalar target's.
template <typename Run>
void expect_same_on_targets(const Run& run, const std::string& what) {
  std::vector<std::byte> scalar;
  for (const SimdTarget target : supported_simd_targets()) {
    set_simd_target(target);
    const std::vector<std::byte> got = run();
    if (target == SimdTarget::scalar) scalar = got;
    EXPECT_TRUE(got == scalar) << what << " on " << simd_target_name(target);
  }
}

inline void append(std::vector<std::byte>& all, const std::vector<std::byte>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace terrace::testing
