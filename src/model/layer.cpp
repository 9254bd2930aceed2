#include "src/model/layer.h"

#include <algorithm>

#include "kernels/cpu/cast.h"
#include "kernels/cpu/layernorm.h"
#include "kernels/cpu/tile.h"
#include "src/base/parallel_for.h"
#include "src/base/units.h"

namespace terrace {
namespace {

// body(begin, count) for pieces of at most `piece` of [0, total).
template <typename Body>
void for_pieces(std::int64_t total, std::int64_t piece, const Body& body) {
  parallel_for(div_up(static_cast<std::uint64_t>(total), static_cast<std::uint64_t>(piece)),
               [&](std::size_t i) {
                 const std::int64_t begin = static_cast<std::int64_t>(i) * piece;
                 body(begin, std::min(piece, total - begin));
               });
}

}  // namespace

void write_gradient(const float* sums, std::int64_t numel, const ParameterGradient& out) {
  cast_to(out.dtype, sums, out.data, static_cast<std::size_t>(numel));
}

template <typename T>
void weight_gradient(const LayerContext& context, const T* a, std::int64_t columns_a, const T* b,
                     std::int64_t columns_b, const ParameterGradient& out) {
  const MatrixView left = transposed(a, columns_a);
  const MatrixView right = matrix(b, columns_b);
  if (out.dtype == DType::f32) {
    product_to(context.workers, columns_a, columns_b, context.rows, left, right,
               reinterpret_cast<float*>(out.data), columns_b, false);
    return;
  }
  const auto rounded_product = [&](auto* rounded) {
    product(context.workers, columns_a, columns_b, context.rows, left, right, [&](const ProductTile& tile) {
      store_tile(tile.values, tile.stride, tile.rows, tile.columns,
                 rounded + tile.row * columns_b + tile.column, columns_b);
    });
  };
  if (out.dtype == DType::bf16) {
    rounded_product(reinterpret_cast<bf16*>(out.data));
  } else {
    rounded_product(reinterpret_cast<f16*>(out.data));
  }
}

template <typename T>
void bias_gradient(const LayerContext& context, const T* dout, std::int64_t columns,
                   const ParameterGradient& out) {
  for_pieces(columns, kStripColumns, [&](std::int64_t begin, std::int64_t count) {
    float sums[kStripColumns];
    column_sums(dout + begin, context.rows, columns, count, sums);
    write_gradient(sums, count, out.from(begin));
  });
}

template <typename T>
void product_rows(const LayerContext& context, std::int64_t columns, std::int64_t depth, const T* a,
                  const MatrixView& b, T* out) {
  product(context.workers, context.rows, columns, depth, matrix(a, depth), b, [&](const ProductTile& tile) {
    store_tile(tile.values, tile.stride, tile.rows, tile.columns, out + tile.row * columns + tile.column,
               columns);
  });
}

template <typename T>
void norm_forward(const LayerContext& context, const T* in, const T* gain, const T* bias, T* out, float* mean,
                  float* rstd) {
  const std::int64_t width = context.sizes.width;
  for_pieces(context.rows, kPassRows, [&](std::int64_t begin, std::int64_t count) {
    layernorm(in + begin * width, count, width, gain, bias, out + begin * width, mean + begin, rstd + begin);
  });
}

template <typename T>
void norm_backward(const LayerContext& context, const T* in, const T* dout, const T* residual, const T* gain,
                   const float* mean, const float* rstd, T* din, const ParameterGradient& dgain,
                   const ParameterGradient& dbias) {
  const std::int64_t width = context.sizes.width;
  for_pieces(width, kStripColumns, [&](std::int64_t begin, std::int64_t count) {
    float gain_sums[kStripColumns];
    float bias_sums[kStripColumns];
    layernorm_backward_columns(in + begin, dout + begin, context.rows, width, count, mean, rstd, gain_sums,
                               bias_sums);
    write_gradient(gain_sums, count, dgain.from(begin));
    write_gradient(bias_sums, count, dbias.from(begin));
  });
  for_pieces(context.rows, kPassRows, [&](std::int64_t begin, std::int64_t count) {
    const std::int64_t at = begin * width;
    layernorm_backward(in + at, dout + at, residual == nullptr ? nullptr : residual + at, count, width, gain,
                       mean + begin, rstd + begin, din + at);
  });
}

#define TERRACE_LAYER(T)                                                                                   \
  template void weight_gradient(const LayerContext&, const T*, std::int64_t, const T*, std::int64_t,       \
                                const ParameterGradient&);                                                 \
  template void bias_gradient(const LayerContext&, const T*, std::int64_t, const ParameterGradient&);      \
  template void product_rows(const LayerContext&, std::int64_t, std::int64_t, const T*, const MatrixView&, \
                             T*);                                                                          \
  template void norm_forward(const LayerContext&, const T*, const T*, const T*, T*, float*, float*);       \
  template void norm_backward(const LayerContext&, const T*, const T*, const T*, const T*, const float*,   \
                              const float*, T*, const ParameterGradient&, const ParameterGradient&);
TERRACE_LAYER(float)
TERRACE_LAYER(bf16)
TERRACE_LAYER(f16)
#undef TERRACE_LAYER

}  // namespace terrace
