// Where the parts of a unit's operands lie: saved activations and workspaces, as functions of the model's
// shape alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/base/dtype.h"
#include "src/model/model_spec.h"
#include "src/model/product.h"

namespace terrace {

// The numbers that every size follows from. Rows are tokens: samples * context of the largest contribution.
struct ModelSizes {
  ModelSizes(const ModelSpec& spec, std::uint32_t max_samples, DType param_dtype, DType grad_dtype);

  std::int64_t max_rows;
  std::int64_t context;
  std::int64_t width;
  std::int64_t heads;
  std::int64_t head_width;
  std::int64_t mlp;
  std::int64_t vocabulary;
  DType compute;  // of parameters and activations
  DType grad;     // of gradients of parameters
  bool tied;

  std::size_t element_bytes() const { return dtype_bytes(compute); }
  std::size_t activation_bytes() const;  // of one [rows, width] activation
};

// Query rows of an attention tile, rows of the head's logits, columns of a sum over rows, rows of a row-wise
// pass: how work is cut, the same for every budget and number of threads.
inline constexpr std::int64_t kQueryRows = 128;
inline constexpr std::int64_t kHeadRows = 1024;
inline constexpr std::int64_t kStripColumns = 64;
inline constexpr std::int64_t kPassRows = 16;

// Byte offsets; every part starts on a cache line. `bytes` is the whole.
struct BlockSaved {
  std::size_t qkv, attention, middle, before_gelu, lse, bytes;
  explicit BlockSaved(const ModelSizes& sizes);
};
struct BlockForwardWorkspace {
  std::size_t normal, mean, rstd, after_gelu, bytes;
  explicit BlockForwardWorkspace(const ModelSizes& sizes);
};
struct BlockBackwardWorkspace {
  std::size_t normal, mean, rstd, after_gelu, dbefore_gelu, dnormal, bytes;  // dbefore_gelu holds dqkv later
  explicit BlockBackwardWorkspace(const ModelSizes& sizes);
};
struct EmbeddingBackwardWorkspace {
  std::size_t starts, order, bytes;
  explicit EmbeddingBackwardWorkspace(const ModelSizes& sizes);
};
struct HeadWorkspace {
  std::size_t normal, mean, rstd, losses, target_logits, part_max, part_sum;
  std::size_t dlogits, dnormal, weight_sum,
      bytes;  // these only where `backward`; weight_sum only where needed
  HeadWorkspace(const ModelSizes& sizes, bool backward);
};

// Of each compute thread.
WorkerNeeds worker_needs(const ModelSizes& sizes);

}  // namespace terrace
