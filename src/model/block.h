// One transformer block: x + attention(norm(x)), then + MLP(norm(...)), as GPT-2 has them.
#pragma once

#include "src/model/layer.h"

namespace terrace {

// The block's tensors in its flat parameter (and, in the same places, its flat gradient), as unit_tensors()
// lists them: element offsets.
struct BlockTensors {
  std::int64_t norm1_gain, norm1_bias, qkv_weight, qkv_bias, proj_weight, proj_bias;
  std::int64_t norm2_gain, norm2_bias, fc_weight, fc_bias, mlp_proj_weight, mlp_proj_bias, numel;
  explicit BlockTensors(const ModelSizes& sizes);
};

// Shapes: in, out, dout, din [rows, width]. `saved` and `workspace` are laid out as layout.h says; grads is
// the flat gradient without its padding.

// out may be null: then only `saved` is written (recompute), with the bits that the whole forward writes.
template <typename T>
void block_forward(const LayerContext& context, const T* params, const T* in, T* out, std::byte* saved,
                   std::byte* workspace);

template <typename T>
void block_backward(const LayerContext& context, const T* params, const T* in, const std::byte* saved,
                    const T* dout, T* din, const ParameterGradient& grads, std::byte* workspace);

}  // namespace terrace
