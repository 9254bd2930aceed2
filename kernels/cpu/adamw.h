// AdamW with decoupled weight decay, in one pass: unscale, clip, moments, master copy and the cast to the
// parameter's type (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", as PyTorch's AdamW
// computes it).
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/base/dtype.h"

namespace terrace {

// What a group of parameters is updated with at one step.
struct AdamWHyper {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
};

// The scalars of one call, made in double and rounded once. `step` counts this update: 1 for a tensor's
// first.
struct AdamWScalars {
  float beta1_complement;  // 1 - beta1
  float beta2_complement;  // 1 - beta2
  float decay;             // lr * weight_decay
  float step_size;         // lr / (1 - beta1^step)
  float root_correction;   // 1 / sqrt(1 - beta2^step)
  float eps;

  // Throws invalid_argument when step is 0 or a value is out of its range (betas in [0, 1), eps > 0 in fp32
  // too, lr and decay >= 0).
  static AdamWScalars make(const AdamWHyper& hyper, std::uint64_t step);
};

struct AdamWSource {
  const float* master;
  const float* exp_avg;
  const float* exp_avg_sq;
};
struct AdamWTarget {
  float* master;
  float* exp_avg;
  float* exp_avg_sq;
};

// For every i < numel, in fp32, each line rounded as written (fma is fused):
//   g = gradient[i] * grad_scale
//   m = fma(1 - beta1, g, fma(-(1 - beta1), exp_avg[i], exp_avg[i]))
//   v = min(FLT_MAX, fma(1 - beta2, fma(g, g, -exp_avg_sq[i]), exp_avg_sq[i]))
//   u = m / fma(sqrt(v), 1 / sqrt(1 - beta2^step), eps)
//   p = master[i] - fma(step_size, u, decay * master[i])
// (1 - beta keeps its precision in fp32 where beta does not; a finite gradient never makes a moment
// infinite.) Then p, m, v go to `target` and p, rounded to nearest even, to `parameter` (infinite where an
// f16 cannot hold it). `grad_scale` is 1 / loss scale times the clip factor. Source and target streams are
// equal or apart, one by one; other arrays do not overlap. Any alignment; thread-safe; the same bits on every
// target. Cost: 28 bytes of memory traffic an element with 16-bit gradient and parameter.
void adamw(const AdamWSource& source, const AdamWTarget& target, const void* gradient, DType gradient_dtype,
           void* parameter, DType parameter_dtype, std::size_t numel, float grad_scale,
           const AdamWScalars& scalars);

}  // namespace terrace
