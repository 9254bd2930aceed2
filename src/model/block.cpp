#include "src/model/block.h"

#include "kernels/cpu/gelu.h"
#include "kernels/cpu/tile.h"
#include "src/model/attention.h"

namespace terrace {
namespace {

template <typename T, typename Byte>
auto* part(Byte* base, std::size_t offset) {
  if constexpr (std::is_const_v<Byte>) {
    return reinterpret_cast<const T*>(base + offset);
  } else {
    return reinterpret_cast<T*>(base + offset);
  }
}

// out[rows, columns] = residual + a[rows, depth] * weight^T + bias.
template <typename T>
void project_and_add(const LayerContext& context, std::int64_t columns, std::int64_t depth, const T* a,
                     const T* weight, const T* bias, const T* residual, T* out) {
  product(context.workers, context.rows, columns, depth, matrix(a, depth), transposed(weight, depth),
          [&](const ProductTile& tile) {
            const std::int64_t at = tile.row * columns + tile.column;
            bias_residual_tile(tile.values, tile.stride, tile.rows, tile.columns, bias + tile.column,
                               residual + at, out + at, columns);
          });
}

// out[rows, columns] = a[rows, depth] * weight^T + bias.
template <typename T>
void project(const LayerContext& context, std::int64_t columns, std::int64_t depth, const T* a,
             const T* weight, const T* bias, T* out) {
  product(context.workers, context.rows, columns, depth, matrix(a, depth), transposed(weight, depth),
          [&](const ProductTile& tile) {
            bias_tile(tile.values, tile.stride, tile.rows, tile.columns, bias + tile.column,
                      out + tile.row * columns + tile.column, columns);
          });
}

}  // namespace

BlockTensors::BlockTensors(const ModelSizes& s) {
  std::int64_t at = 0;
  const auto take = [&at](std::int64_t tensor_numel) {
    const std::int64_t offset = at;
    at += tensor_numel;
    return offset;
  };
  norm1_gain = take(s.width);
  norm1_bias = take(s.width);
  qkv_weight = take(3 * s.width * s.width);
  qkv_bias = take(3 * s.width);
  proj_weight = take(s.width * s.width);
  proj_bias = take(s.width);
  norm2_gain = take(s.width);
  norm2_bias = take(s.width);
  fc_weight = take(s.mlp * s.width);
  fc_bias = take(s.mlp);
  mlp_proj_weight = take(s.width * s.mlp);
  mlp_proj_bias = take(s.width);
  numel = at;
}

template <typename T>
void block_forward(const LayerContext& context, const T* params, const T* in, T* out, std::byte* saved,
                   std::byte* workspace) {
  const ModelSizes& s = context.sizes;
  const BlockTensors at(s);
  const BlockSaved keep(s);
  const BlockForwardWorkspace work(s);
  T* qkv = part<T>(saved, keep.qkv);
  T* attention = part<T>(saved, keep.attention);
  T* middle = part<T>(saved, keep.middle);
  T* before_gelu = part<T>(saved, keep.before_gelu);
  T* normal = part<T>(workspace, work.normal);
  float* mean = part<float>(workspace, work.mean);
  float* rstd = part<float>(workspace, work.rstd);
  T* after_gelu = part<T>(workspace, work.after_gelu);

  norm_forward(context, in, params + at.norm1_gain, params + at.norm1_bias, normal, mean, rstd);
  project(context, 3 * s.width, s.width, normal, params + at.qkv_weight, params + at.qkv_bias, qkv);
  attention_forward(context, qkv, attention, part<float>(saved, keep.lse));
  project_and_add(context, s.width, s.width, attention, params + at.proj_weight, params + at.proj_bias, in,
                  middle);
  norm_forward(context, middle, params + at.norm2_gain, params + at.norm2_bias, normal, mean, rstd);
  if (out == nullptr) {
    project(context, s.mlp, s.width, normal, params + at.fc_weight, params + at.fc_bias, before_gelu);
    return;
  }
  product(context.workers, context.rows, s.mlp, s.width, matrix(normal, s.width),
          transposed(params + at.fc_weight, s.width), [&](const ProductTile& tile) {
            const std::int64_t place = tile.row * s.mlp + tile.column;
            bias_gelu(tile.values, tile.stride, tile.rows, tile.columns, params + at.fc_bias + tile.column,
                      before_gelu + place, after_gelu + place, s.mlp);
          });
  project_and_add(context, s.width, s.mlp, after_gelu, params + at.mlp_proj_weight, params + at.mlp_proj_bias,
                  middle, out);
}

template <typename T>
void block_backward(const LayerContext& context, const T* params, const T* in, const std::byte* saved,
                    const T* dout, T* din, const ParameterGradient& grads, std::byte* workspace) {
  const ModelSizes& s = context.sizes;
  const BlockTensors at(s);
  const BlockSaved keep(s);
  const BlockBackwardWorkspace work(s);
  const T* qkv = part<T>(saved, keep.qkv);
  const T* attention = part<T>(saved, keep.attention);
  const T* middle = part<T>(saved, keep.middle);
  const T* before_gelu = part<T>(saved, keep.before_gelu);
  T* normal = part<T>(workspace, work.normal);
  float* mean = part<float>(workspace, work.mean);
  float* rstd = part<float>(workspace, work.rstd);
  T* after_gelu = part<T>(workspace, work.after_gelu);
  T* dbefore_gelu = part<T>(workspace, work.dbefore_gelu);
  T* dnormal = part<T>(workspace, work.dnormal);
  T* dmiddle = din;  // until the first norm's gradient is added to it

  // MLP.
  product(context.workers, context.rows, s.mlp, s.width, matrix(dout, s.width),
          matrix(params + at.mlp_proj_weight, s.mlp), [&](const ProductTile& tile) {
            const std::int64_t place = tile.row * s.mlp + tile.column;
            gelu_backward(tile.values, tile.stride, tile.rows, tile.columns, before_gelu + place,
                          dbefore_gelu + place, after_gelu + place, s.mlp);
          });
  bias_gradient(context, dout, s.width, grads.from(at.mlp_proj_bias));
  weight_gradient(context, dout, s.width, after_gelu, s.mlp, grads.from(at.mlp_proj_weight));
  norm_forward(context, middle, params + at.norm2_gain, params + at.norm2_bias, normal, mean, rstd);
  bias_gradient(context, dbefore_gelu, s.mlp, grads.from(at.fc_bias));
  weight_gradient(context, dbefore_gelu, s.mlp, normal, s.width, grads.from(at.fc_weight));
  product_rows(context, s.width, s.mlp, dbefore_gelu, matrix(params + at.fc_weight, s.width), dnormal);
  norm_backward(context, middle, dnormal, dout, params + at.norm2_gain, mean, rstd, dmiddle,
                grads.from(at.norm2_gain), grads.from(at.norm2_bias));

  // Attention.
  T* dattention = dnormal;
  T* dqkv = dbefore_gelu;
  bias_gradient(context, dmiddle, s.width, grads.from(at.proj_bias));
  weight_gradient(context, dmiddle, s.width, attention, s.width, grads.from(at.proj_weight));
  product_rows(context, s.width, s.width, dmiddle, matrix(params + at.proj_weight, s.width), dattention);
  attention_backward(context, qkv, attention, part<float>(saved, keep.lse), dattention, dqkv);
  norm_forward(context, in, params + at.norm1_gain, params + at.norm1_bias, normal, mean, rstd);
  bias_gradient(context, dqkv, 3 * s.width, grads.from(at.qkv_bias));
  weight_gradient(context, dqkv, 3 * s.width, normal, s.width, grads.from(at.qkv_weight));
  product_rows(context, s.width, 3 * s.width, dqkv, matrix(params + at.qkv_weight, s.width), dnormal);
  norm_backward(context, in, dnormal, dmiddle, params + at.norm1_gain, mean, rstd, din,
                grads.from(at.norm1_gain), grads.from(at.norm1_bias));
}

#define TERRACE_BLOCK(T)                                                                                \
  template void block_forward(const LayerContext&, const T*, const T*, T*, std::byte*, std::byte*);     \
  template void block_backward(const LayerContext&, const T*, const T*, const std::byte*, const T*, T*, \
                               const ParameterGradient&, std::byte*);
TERRACE_BLOCK(float)
TERRACE_BLOCK(bf16)
TERRACE_BLOCK(f16)
#undef TERRACE_BLOCK

}  // namespace terrace
