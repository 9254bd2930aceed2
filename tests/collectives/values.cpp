#include "tests/collectives/values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace terrace {

std::uint64_t seed_of(std::uint64_t what, int rank) {
  return what * 1'000'003 + static_cast<std::uint64_t>(rank) + 1;
}

std::vector<std::byte> random_bytes(std::uint64_t seed, std::uint64_t bytes) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> out(bytes);
  for (std::uint64_t i = 0; i < bytes; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(out.data() + i, &word, std::min<std::uint64_t>(8, bytes - i));
  }
  return out;
}

std::vector<std::byte> random_gradient(std::uint64_t seed, DType dtype, std::uint64_t numel) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> out(numel * dtype_bytes(dtype));
  for (std::uint64_t i = 0; i < numel; ++i) {
    const std::uint64_t word = random();
    float value = static_cast<float>(static_cast<std::int64_t>(word)) * 0x1p-62f;
    if ((word & 15) == 0) value *= 0x1p12f;
    if ((word & 15) == 1) value = -0.0f;
    if (dtype == DType::f32) {
      std::memcpy(out.data() + 4 * i, &value, 4);
    } else {
      const std::uint16_t bits = dtype == DType::bf16 ? to_bf16(value).bits : to_f16(value).bits;
      std::memcpy(out.data() + 2 * i, &bits, 2);
    }
  }
  return out;
}

float element(std::span<const std::byte> values, DType dtype, std::uint64_t index) {
  if (dtype == DType::f32) {
    float value = 0;
    std::memcpy(&value, values.data() + 4 * index, 4);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, values.data() + 2 * index, 2);
  return dtype == DType::bf16 ? to_float(bf16{bits}) : to_float(f16{bits});
}

float plain_fold(const std::vector<std::vector<std::byte>>& contributions, DType dtype, std::uint64_t index,
                 bool last) {
  float sum = element(contributions.front(), dtype, index);
  for (std::size_t k = 1; k < contributions.size(); ++k) sum = sum + element(contributions[k], dtype, index);
  return last ? rounded_to(dtype, sum) : sum;
}

double plain_block_sum(std::span<const float> values) {
  double lane[16] = {};
  for (std::size_t i = 0; i < values.size(); ++i) {
    lane[i % 16] += static_cast<double>(values[i]) * values[i];
  }
  for (int step = 8; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) lane[i] += lane[i + step];
  }
  return std::isfinite(lane[0]) ? lane[0] : std::numeric_limits<double>::infinity();
}

Layout scattered(std::mt19937_64& random, const std::vector<std::uint64_t>& numels) {
  Layout layout{.parts = std::vector<Part>(numels.size()), .numel = random() % 3};
  std::vector<std::size_t> order(numels.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  for (const std::size_t i : order) {
    layout.parts[i] = {layout.numel, numels[i]};
    layout.numel += numels[i] + random() % 3;
  }
  return layout;
}

std::vector<std::uint64_t> random_numels(std::mt19937_64& random, int ranks) {
  constexpr std::uint64_t kLengths[] = {0,  0,  1,   2,   3,    7,    15,   16,   17,  31,  64,
                                        97, 97, 101, 997, 4095, 4096, 4097, 8209, 517, 255, 16400};
  std::vector<std::uint64_t> numels;
  for (int r = 0; r < ranks; ++r) numels.push_back(kLengths[random() % std::size(kLengths)]);
  return numels;
}

}  // namespace terrace
