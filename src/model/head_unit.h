// The head: the last norm, the product with the vocabulary's matrix, and cross entropy. Logits exist only in
// fp32 tiles of a worker; what is kept of at most kHeadRows rows are exponentials, rounded to the compute
// dtype, which become the gradient of the logits in place.
#pragma once

#include <span>

#include "src/model/layer.h"

namespace terrace {

inline constexpr std::int32_t kIgnoreTarget = -1;  // any negative target counts for nothing

// A row whose fp32 logits are wanted too: `logits` holds [vocabulary]. None when the row is negative.
struct WatchedRow {
  std::int64_t row = -1;
  float* logits = nullptr;
};

// params: gain and bias of the norm, then the matrix [vocabulary, width] when it is not tied. `tied` points
// at the embedding's flat parameter (its token table stands first), or is null. Returns the sum of the losses
// over targets, in their order.
template <typename T>
double head_forward(const LayerContext& context, const T* params, const T* tied,
                    std::span<const std::int32_t> targets, const T* in, std::byte* workspace,
                    const WatchedRow& watched = {});

// The same sum, and the gradients of (sum * scale), the scale rounded to fp32: din[rows, width], grads
// (without padding), and for a tied matrix shared_grad [vocabulary, width].
template <typename T>
double head_backward(const LayerContext& context, const T* params, const T* tied,
                     std::span<const std::int32_t> targets, double scale, const T* in, T* din,
                     const ParameterGradient& grads, float* shared_grad, std::byte* workspace);

}  // namespace terrace
