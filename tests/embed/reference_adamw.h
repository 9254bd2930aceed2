// AdamW over whole tensors, one element after another, by the formulas alone: in fp32 with every rounding as
// kernels/cpu/adamw.h writes it, and in double precision as PyTorch writes it.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "src/base/dtype.h"
#include "terrace/optimizer.h"

namespace terrace::embed_test {

// A tensor's gradient in one contribution; nothing where it had no part.
using Contribution = std::optional<std::vector<float>>;

// Each contribution rounded to `dtype`, added in fp32 in ascending order onto the first, the sum rounded.
// Nothing when there was none.
inline std::optional<std::vector<float>> fold_contributions(const std::vector<Contribution>& contributions,
                                                            DType dtype) {
  const auto rounded = [&](float value) { return dtype == DType::bf16 ? to_float(to_bf16(value)) : value; };
  std::optional<std::vector<float>> sum;
  for (const Contribution& contribution : contributions) {
    if (!contribution) continue;
    const bool first = !sum;
    if (first) sum.emplace(contribution->size());
    for (std::size_t i = 0; i < contribution->size(); ++i)
      (*sum)[i] = first ? rounded((*contribution)[i]) : (*sum)[i] + rounded((*contribution)[i]);
  }
  if (sum) {
    for (float& value : *sum) value = rounded(value);
  }
  return sum;
}

// One tensor in fp32.
struct ExactTensor {
  std::vector<float> master, m, v;
  std::uint64_t steps = 0;

  explicit ExactTensor(std::vector<float> initial)
      : master(std::move(initial)), m(master.size()), v(master.size()) {}

  void update(const std::vector<float>& gradient, const AdamWGroup& h, double loss_scale) {
    ++steps;
    const auto count = static_cast<double>(steps);
    const auto scale = static_cast<float>(1 / loss_scale);
    const auto c1 = static_cast<float>(1 - h.beta1), c2 = static_cast<float>(1 - h.beta2);
    const auto decay = static_cast<float>(h.lr * h.weight_decay);
    const auto step_size = static_cast<float>(h.lr / (1 - std::pow(h.beta1, count)));
    const auto root = static_cast<float>(1 / std::sqrt(1 - std::pow(h.beta2, count)));
    const auto eps = static_cast<float>(h.eps);
    for (std::size_t i = 0; i < master.size(); ++i) {
      const float g = gradient[i] * scale;
      m[i] = std::fma(c1, g, std::fma(-c1, m[i], m[i]));
      v[i] = std::fma(c2, std::fma(g, g, -v[i]), v[i]);
      const float u = m[i] / std::fma(std::sqrt(v[i]), root, eps);
      master[i] = master[i] - std::fma(step_size, u, decay * master[i]);
    }
  }
};

// One tensor in double precision. `scale`: 1 / loss scale times the clip factor.
struct DoubleTensor {
  std::vector<double> p, m, v;
  std::uint64_t steps = 0;

  explicit DoubleTensor(const std::vector<float>& initial)
      : p(initial.begin(), initial.end()), m(p.size()), v(p.size()) {}

  void update(const std::vector<float>& gradient, const AdamWGroup& h, double scale) {
    ++steps;
    const auto count = static_cast<double>(steps);
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double g = static_cast<double>(gradient[i]) * scale;
      p[i] *= 1 - h.lr * h.weight_decay;
      m[i] = h.beta1 * m[i] + (1 - h.beta1) * g;
      v[i] = h.beta2 * v[i] + (1 - h.beta2) * g * g;
      p[i] -= h.lr * (m[i] / (1 - std::pow(h.beta1, count))) /
              (std::sqrt(v[i] / (1 - std::pow(h.beta2, count))) + h.eps);
    }
  }
};

}  // namespace terrace::embed_test
