// The embedding: token table [vocabulary, width] and position table [context, width], one flat parameter.
#pragma once

#include <span>

#include "src/model/layer.h"

namespace terrace {

// out[rows, width] = token row + position row.
template <typename T>
void embedding_forward(const LayerContext& context, const T* params, std::span<const std::uint32_t> tokens,
                       T* out);

// The gradient of both tables from dout. A token's rows are added in the order of the batch, in fp32, onto
// the row of `shared_grad` (the head's use of a tied table; may be null), and rounded once.
template <typename T>
void embedding_backward(const LayerContext& context, std::span<const std::uint32_t> tokens, const T* dout,
                        const float* shared_grad, const ParameterGradient& grads, std::byte* workspace);

}  // namespace terrace
