// Causal attention with heads. qkv is [rows, 3 * width]: queries, keys and values side by side, heads in
// order within each. Samples are `context` rows each and do not see one another. The score matrix is never
// stored: tiles of kQueryRows queries, each over the keys up to its last query (Dao et al. 2022).
#pragma once

#include "src/model/layer.h"

namespace terrace {

// out[rows, width]; lse[samples, heads, context] is what backward needs of the softmax.
template <typename T>
void attention_forward(const LayerContext& context, const T* qkv, T* out, float* lse);

// dqkv[rows, 3 * width] from the gradient of `out`. Probabilities are computed again from qkv and lse.
template <typename T>
void attention_backward(const LayerContext& context, const T* qkv, const T* out, const float* lse,
                        const T* dout, T* dqkv);

}  // namespace terrace
