// What the layers share: sizes, workers, and the small passes around matrix products.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/model/layout.h"
#include "src/model/product.h"

namespace terrace {

// What a layer's code gets: `rows` = samples * context of this contribution, at most sizes.max_rows. Layers
// allocate nothing; they run on the calling thread and on those of parallel_for.
struct LayerContext {
  const ModelSizes& sizes;
  WorkerPool& workers;
  std::int64_t rows = 0;

  std::int64_t samples() const { return rows / sizes.context; }
};

// A gradient of parameters, in the gradient's dtype.
struct ParameterGradient {
  std::byte* data = nullptr;
  DType dtype = DType::f32;

  ParameterGradient from(std::int64_t element) const {
    return {data + element * static_cast<std::int64_t>(dtype_bytes(dtype)), dtype};
  }
};

template <typename T>
MatrixView matrix(const T* data, std::int64_t stride) {
  return {data, dtype_of<T>(), stride, false};
}
// The transpose of the row-major matrix at `data`.
template <typename T>
MatrixView transposed(const T* data, std::int64_t stride) {
  return {data, dtype_of<T>(), stride, true};
}

// Rounds `numel` fp32 sums once into the gradient.
void write_gradient(const float* sums, std::int64_t numel, const ParameterGradient& out);

// out[columns_a, columns_b] = a^T b over the context's rows; a and b are row-major and dense. Summed in fp32,
// rounded once.
template <typename T>
void weight_gradient(const LayerContext& context, const T* a, std::int64_t columns_a, const T* b,
                     std::int64_t columns_b, const ParameterGradient& out);

// out[columns] = the sum over rows of dout, dense.
template <typename T>
void bias_gradient(const LayerContext& context, const T* dout, std::int64_t columns,
                   const ParameterGradient& out);

// out[rows, columns] = a[rows, depth] * b, rounded once to T.
template <typename T>
void product_rows(const LayerContext& context, std::int64_t columns, std::int64_t depth, const T* a,
                  const MatrixView& b, T* out);

// The norms of a block and of the head, over the context's rows of `width`.
template <typename T>
void norm_forward(const LayerContext& context, const T* in, const T* gain, const T* bias, T* out, float* mean,
                  float* rstd);
// `din` = the gradient of `in`, plus `residual` when that is not null (din may be residual).
template <typename T>
void norm_backward(const LayerContext& context, const T* in, const T* dout, const T* residual, const T* gain,
                   const float* mean, const float* rstd, T* din, const ParameterGradient& dgain,
                   const ParameterGradient& dbias);

}  // namespace terrace
