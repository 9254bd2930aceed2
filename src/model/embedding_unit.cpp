#include "src/model/embedding_unit.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/embedding.h"
#include "src/base/parallel_for.h"
#include "src/base/units.h"

namespace terrace {
namespace {

constexpr std::int64_t kTableRows = 64;  // rows of a table that one piece of work takes

// Positions of the batch by token: those of token v are order[starts[v]] to order[starts[v + 1]], ascending.
void sort_by_token(std::span<const std::uint32_t> tokens, std::int64_t vocabulary, std::uint32_t* starts,
                   std::uint32_t* order) {
  std::memset(starts, 0, static_cast<std::size_t>(vocabulary + 1) * sizeof(std::uint32_t));
  for (const std::uint32_t token : tokens) ++starts[token + 1];
  for (std::int64_t v = 0; v < vocabulary; ++v) starts[v + 1] += starts[v];
  for (std::uint32_t i = 0; i < tokens.size(); ++i) order[starts[tokens[i]]++] = i;
  for (std::int64_t v = vocabulary; v > 0; --v) starts[v] = starts[v - 1];
  starts[0] = 0;
}

}  // namespace

template <typename T>
void embedding_forward(const LayerContext& context, const T* params, std::span<const std::uint32_t> tokens,
                       T* out) {
  const ModelSizes& s = context.sizes;
  const T* positions = params + s.vocabulary * s.width;
  parallel_for(div_up(static_cast<std::uint64_t>(context.rows), kPassRows), [&](std::size_t piece) {
    const std::int64_t begin = static_cast<std::int64_t>(piece) * kPassRows;
    for (std::int64_t r = begin; r < std::min(context.rows, begin + kPassRows); ++r) {
      const std::int64_t token = tokens[static_cast<std::size_t>(r)];
      add_rows(params + token * s.width, positions + r % s.context * s.width, out + r * s.width, s.width);
    }
  });
}

template <typename T>
void embedding_backward(const LayerContext& context, std::span<const std::uint32_t> tokens, const T* dout,
                        const float* shared_grad, const ParameterGradient& grads, std::byte* workspace) {
  const ModelSizes& s = context.sizes;
  const EmbeddingBackwardWorkspace work(s);
  auto* starts = reinterpret_cast<std::uint32_t*>(workspace + work.starts);
  auto* order = reinterpret_cast<std::uint32_t*>(workspace + work.order);
  sort_by_token(tokens, s.vocabulary, starts, order);
  const auto row_bytes = static_cast<std::size_t>(s.width) * sizeof(float);

  parallel_for(div_up(static_cast<std::uint64_t>(s.vocabulary), kTableRows), [&](std::size_t piece) {
    const WorkerPool::Lease worker(context.workers);
    auto* sum = reinterpret_cast<float*>(worker->scratch());
    const std::int64_t begin = static_cast<std::int64_t>(piece) * kTableRows;
    for (std::int64_t v = begin; v < std::min(s.vocabulary, begin + kTableRows); ++v) {
      if (shared_grad != nullptr) {
        std::memcpy(sum, shared_grad + v * s.width, row_bytes);
      } else {
        std::memset(sum, 0, row_bytes);
      }
      for (std::uint32_t i = starts[v]; i < starts[v + 1]; ++i) {
        accumulate_row(dout + order[i] * s.width, sum, s.width);
      }
      write_gradient(sum, s.width, grads.from(v * s.width));
    }
  });

  const ParameterGradient positions = grads.from(s.vocabulary * s.width);
  parallel_for(div_up(static_cast<std::uint64_t>(s.context), kPassRows), [&](std::size_t piece) {
    const WorkerPool::Lease worker(context.workers);
    auto* sum = reinterpret_cast<float*>(worker->scratch());
    const std::int64_t begin = static_cast<std::int64_t>(piece) * kPassRows;
    for (std::int64_t t = begin; t < std::min(s.context, begin + kPassRows); ++t) {
      std::memset(sum, 0, row_bytes);
      for (std::int64_t r = t; r < context.rows; r += s.context)
        accumulate_row(dout + r * s.width, sum, s.width);
      write_gradient(sum, s.width, positions.from(t * s.width));
    }
  });
}

#define TERRACE_EMBEDDING(T)                                                                          \
  template void embedding_forward(const LayerContext&, const T*, std::span<const std::uint32_t>, T*); \
  template void embedding_backward(const LayerContext&, std::span<const std::uint32_t>, const T*,     \
                                   const float*, const ParameterGradient&, std::byte*);
TERRACE_EMBEDDING(float)
TERRACE_EMBEDDING(bf16)
TERRACE_EMBEDDING(f16)
#undef TERRACE_EMBEDDING

}  // namespace terrace
