// The oracle: every layer in plain loops and double precision, forward and backward, checked itself against
// central finite differences (reference_test.cpp). Matrices are row-major; gradients of parameters are added
// to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/model/model_spec.h"

namespace terrace::testing {

using Doubles = std::vector<double>;

// y[rows, out] = x[rows, in] w[out, in]^T + b[out] (b may be null).
Doubles linear(const Doubles& x, const double* w, const double* b, std::size_t rows, std::size_t in,
               std::size_t out);
// Returns dx; adds to dw and db (which may be null).
Doubles linear_backward(const Doubles& x, const double* w, const Doubles& dy, std::size_t rows,
                        std::size_t in, std::size_t out, double* dw, double* db);

Doubles layer_norm(const Doubles& x, const double* gain, const double* bias, std::size_t rows,
                   std::size_t width);
Doubles layer_norm_backward(const Doubles& x, const double* gain, const Doubles& dy, std::size_t rows,
                            std::size_t width, double* dgain, double* dbias);

Doubles gelu(const Doubles& x);
Doubles gelu_backward(const Doubles& x, const Doubles& dy);

// qkv[samples * context, 3 * width] -> [samples * context, width], causal.
Doubles attention(const Doubles& qkv, std::size_t samples, std::size_t context, std::size_t heads,
                  std::size_t width);
Doubles attention_backward(const Doubles& qkv, const Doubles& dout, std::size_t samples, std::size_t context,
                           std::size_t heads, std::size_t width);

// The sum of the losses over targets (negative ones skipped); dlogits of (sum / divisor) when not null.
double cross_entropy(const Doubles& logits, const std::vector<std::int32_t>& targets, std::size_t vocabulary,
                     double divisor, Doubles* dlogits);

// One block's flat parameter in the order of unit_tensors().
Doubles block(const ModelSpec& spec, const Doubles& params, const Doubles& x, std::size_t samples);
Doubles block_backward(const ModelSpec& spec, const Doubles& params, const Doubles& x, const Doubles& dy,
                       std::size_t samples, Doubles& grads);

// The whole model: the sum of the losses, and the gradients of (sum / divisor), one flat vector a unit. A
// tied table's gradient is that of both its uses.
struct ReferenceResult {
  double loss_sum = 0;
  std::vector<Doubles> grads;
};
ReferenceResult train_reference(const ModelSpec& spec, const std::vector<Doubles>& params,
                                const std::vector<std::uint32_t>& tokens,
                                const std::vector<std::int32_t>& targets, double divisor);

}  // namespace terrace::testing
