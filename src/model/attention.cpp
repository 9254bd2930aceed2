#include "src/model/attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/softmax.h"
#include "kernels/cpu/tile.h"
#include "src/base/parallel_for.h"
#include "src/base/units.h"

namespace terrace {
namespace {

// Cuts a worker's scratch into parts, each on a cache line.
class ScratchParts {
 public:
  explicit ScratchParts(std::byte* at) : at_(at) {}
  template <typename T>
  T* take(std::int64_t numel) {
    auto* part = reinterpret_cast<T*>(at_);
    at_ += round_up(static_cast<std::uint64_t>(numel) * sizeof(T), 64);
    return part;
  }

 private:
  std::byte* at_;
};

// One head of one sample.
template <typename T>
struct HeadView {
  HeadView(const ModelSizes& sizes, std::int64_t sample, std::int64_t head)
      : stride(3 * sizes.width),
        row(sample * sizes.context),
        column(head * sizes.head_width),
        lse_offset((sample * sizes.heads + head) * sizes.context),
        qkv_offset(row * stride + column),
        out_offset(row * sizes.width + column) {}
  std::int64_t stride;
  std::int64_t row;
  std::int64_t column;
  std::int64_t lse_offset;
  std::int64_t qkv_offset;  // of the first query; keys width further, values 2 * width
  std::int64_t out_offset;
};

float score_scale(const ModelSizes& sizes) {
  return 1.0f / std::sqrt(static_cast<float>(sizes.head_width));
}

template <typename T>
void forward_tile(const LayerContext& context, const HeadView<T>& head, std::int64_t first, const T* qkv,
                  T* out, float* lse) {
  const ModelSizes& s = context.sizes;
  const std::int64_t queries = std::min(kQueryRows, s.context - first);
  const std::int64_t keys = first + queries;
  const WorkerPool::Lease worker(context.workers);
  ScratchParts scratch(worker->scratch());
  float* scores = scratch.take<float>(queries * keys);
  T* weights = scratch.take<T>(queries * keys);
  float* sums = scratch.take<float>(queries * s.head_width);
  float* inverse = scratch.take<float>(queries);

  const T* q = qkv + head.qkv_offset + first * head.stride;
  const T* k = qkv + head.qkv_offset + s.width;
  const T* v = qkv + head.qkv_offset + 2 * s.width;
  worker->multiply(queries, keys, s.head_width, matrix(q, head.stride), transposed(k, head.stride), scores,
                   keys);
  causal_softmax(scores, keys, queries, first + 1, keys, score_scale(s), weights,
                 lse + head.lse_offset + first, inverse);
  worker->multiply(queries, s.head_width, keys, matrix(weights, keys), matrix(v, head.stride), sums,
                   s.head_width);
  scale_rows(sums, s.head_width, queries, s.head_width, inverse, out + head.out_offset + first * s.width,
             s.width);
}

template <typename T>
void backward_head(const LayerContext& context, const HeadView<T>& head, const T* qkv, const T* out,
                   const float* lse, const T* dout, T* dqkv) {
  const ModelSizes& s = context.sizes;
  const std::int64_t tile_rows = std::min(kQueryRows, s.context);
  const WorkerPool::Lease worker(context.workers);
  ScratchParts scratch(worker->scratch());
  float* scores = scratch.take<float>(tile_rows * s.context);
  float* dweights = scratch.take<float>(tile_rows * s.context);
  T* weights = scratch.take<T>(tile_rows * s.context);
  T* dscores = scratch.take<T>(tile_rows * s.context);
  float* dq = scratch.take<float>(tile_rows * s.head_width);
  float* dk = scratch.take<float>(s.context * s.head_width);
  float* dv = scratch.take<float>(s.context * s.head_width);
  float* delta = scratch.take<float>(tile_rows);

  const T* k = qkv + head.qkv_offset + s.width;
  const T* v = qkv + head.qkv_offset + 2 * s.width;
  // The last tile sees every key, so it starts the sums over queries.
  const std::int64_t tiles = (s.context + kQueryRows - 1) / kQueryRows;
  for (std::int64_t tile = tiles - 1; tile >= 0; --tile) {
    const bool accumulate = tile != tiles - 1;
    const std::int64_t first = tile * kQueryRows;
    const std::int64_t queries = std::min(kQueryRows, s.context - first);
    const std::int64_t keys = first + queries;
    const T* q = qkv + head.qkv_offset + first * head.stride;
    const T* d = dout + head.out_offset + first * s.width;
    row_dots(out + head.out_offset + first * s.width, d, s.width, queries, s.head_width, delta);
    worker->multiply(queries, keys, s.head_width, matrix(q, head.stride), transposed(k, head.stride), scores,
                     keys);
    worker->multiply(queries, keys, s.head_width, matrix(d, s.width), transposed(v, head.stride), dweights,
                     keys);
    causal_softmax_backward(scores, dweights, keys, queries, first + 1, keys, score_scale(s),
                            lse + head.lse_offset + first, delta, weights, dscores);
    worker->multiply(keys, s.head_width, queries, transposed(weights, keys), matrix(d, s.width), dv,
                     s.head_width, accumulate);
    worker->multiply(keys, s.head_width, queries, transposed(dscores, keys), matrix(q, head.stride), dk,
                     s.head_width, accumulate);
    worker->multiply(queries, s.head_width, keys, matrix(dscores, keys), matrix(k, head.stride), dq,
                     s.head_width);
    store_tile(dq, s.head_width, queries, s.head_width, dqkv + head.qkv_offset + first * head.stride,
               head.stride);
  }
  T* dk_out = dqkv + head.qkv_offset + s.width;
  store_tile(dk, s.head_width, s.context, s.head_width, dk_out, head.stride);
  store_tile(dv, s.head_width, s.context, s.head_width, dk_out + s.width, head.stride);
}

}  // namespace

template <typename T>
void attention_forward(const LayerContext& context, const T* qkv, T* out, float* lse) {
  const ModelSizes& s = context.sizes;
  const std::int64_t tiles = (s.context + kQueryRows - 1) / kQueryRows;
  parallel_for(static_cast<std::size_t>(context.samples() * s.heads * tiles), [&](std::size_t i) {
    const auto item = static_cast<std::int64_t>(i);
    const HeadView<T> head(s, item / tiles / s.heads, item / tiles % s.heads);
    forward_tile(context, head, item % tiles * kQueryRows, qkv, out, lse);
  });
}

template <typename T>
void attention_backward(const LayerContext& context, const T* qkv, const T* out, const float* lse,
                        const T* dout, T* dqkv) {
  const ModelSizes& s = context.sizes;
  parallel_for(static_cast<std::size_t>(context.samples() * s.heads), [&](std::size_t i) {
    const auto item = static_cast<std::int64_t>(i);
    backward_head(context, HeadView<T>(s, item / s.heads, item % s.heads), qkv, out, lse, dout, dqkv);
  });
}

#define TERRACE_ATTENTION(T)                                                  \
  template void attention_forward(const LayerContext&, const T*, T*, float*); \
  template void attention_backward(const LayerContext&, const T*, const T*, const float*, const T*, T*);
TERRACE_ATTENTION(float)
TERRACE_ATTENTION(bf16)
TERRACE_ATTENTION(f16)
#undef TERRACE_ATTENTION

}  // namespace terrace
