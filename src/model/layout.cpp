#include "src/model/layout.h"

#include <algorithm>

#include "src/base/units.h"

namespace terrace {
namespace {

class Parts {
 public:
  std::size_t add(std::int64_t numel, std::size_t element_bytes) {
    const std::size_t offset = bytes_;
    bytes_ += round_up(static_cast<std::size_t>(numel) * element_bytes, 64);
    return offset;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

}  // namespace

ModelSizes::ModelSizes(const ModelSpec& spec, std::uint32_t max_samples, DType param_dtype, DType grad_dtype)
    : max_rows(static_cast<std::int64_t>(max_samples) * spec.context),
      context(spec.context),
      width(spec.width),
      heads(spec.heads),
      head_width(spec.head_width()),
      mlp(spec.mlp_columns()),
      vocabulary(spec.vocabulary),
      compute(param_dtype),
      grad(grad_dtype),
      tied(spec.tied_head) {}

std::size_t ModelSizes::activation_bytes() const {
  return static_cast<std::size_t>(max_rows * width) * element_bytes();
}

BlockSaved::BlockSaved(const ModelSizes& s) {
  Parts parts;
  qkv = parts.add(s.max_rows * 3 * s.width, s.element_bytes());
  attention = parts.add(s.max_rows * s.width, s.element_bytes());
  middle = parts.add(s.max_rows * s.width, s.element_bytes());
  before_gelu = parts.add(s.max_rows * s.mlp, s.element_bytes());
  lse = parts.add(s.max_rows * s.heads, sizeof(float));
  bytes = parts.bytes();
}

BlockForwardWorkspace::BlockForwardWorkspace(const ModelSizes& s) {
  Parts parts;
  normal = parts.add(s.max_rows * s.width, s.element_bytes());
  mean = parts.add(s.max_rows, sizeof(float));
  rstd = parts.add(s.max_rows, sizeof(float));
  after_gelu = parts.add(s.max_rows * s.mlp, s.element_bytes());
  bytes = parts.bytes();
}

BlockBackwardWorkspace::BlockBackwardWorkspace(const ModelSizes& s) {
  Parts parts;
  normal = parts.add(s.max_rows * s.width, s.element_bytes());
  mean = parts.add(s.max_rows, sizeof(float));
  rstd = parts.add(s.max_rows, sizeof(float));
  after_gelu = parts.add(s.max_rows * s.mlp, s.element_bytes());
  dbefore_gelu = parts.add(s.max_rows * std::max(s.mlp, 3 * s.width), s.element_bytes());
  dnormal = parts.add(s.max_rows * s.width, s.element_bytes());
  bytes = parts.bytes();
}

EmbeddingBackwardWorkspace::EmbeddingBackwardWorkspace(const ModelSizes& s) {
  Parts parts;
  starts = parts.add(s.vocabulary + 1, sizeof(std::uint32_t));
  order = parts.add(s.max_rows, sizeof(std::uint32_t));
  bytes = parts.bytes();
}

HeadWorkspace::HeadWorkspace(const ModelSizes& s, bool backward) {
  Parts parts;
  const std::int64_t rows = std::min(s.max_rows, kHeadRows);
  // Tiles are narrower only where fewer than kWantedTiles would be there: halved twice at most, and then no
  // more than this.
  const std::int64_t across = std::max((s.vocabulary + kTileColumns - 1) / kTileColumns, 2 * kWantedTiles);
  const std::int64_t part_count = rows * across;
  normal = parts.add(s.max_rows * s.width, s.element_bytes());
  mean = parts.add(s.max_rows, sizeof(float));
  rstd = parts.add(s.max_rows, sizeof(float));
  losses = parts.add(s.max_rows, sizeof(double));
  target_logits = parts.add(rows, sizeof(float));
  part_max = parts.add(part_count, sizeof(float));
  part_sum = parts.add(part_count, sizeof(float));
  const bool summed_apart = s.max_rows > kHeadRows && !s.tied && s.grad != DType::f32;
  dlogits = parts.add(backward ? rows * s.vocabulary : 0, s.element_bytes());
  dnormal = parts.add(backward ? s.max_rows * s.width : 0, s.element_bytes());
  weight_sum = parts.add(backward && summed_apart ? s.vocabulary * s.width : 0, sizeof(float));
  bytes = parts.bytes();
}

WorkerNeeds worker_needs(const ModelSizes& s) {
  const std::int64_t scores = kQueryRows * s.context;
  const auto heads = static_cast<std::size_t>((kQueryRows + 2 * s.context) * s.head_width) * sizeof(float);
  const std::size_t attention = 2 * static_cast<std::size_t>(scores) * (sizeof(float) + s.element_bytes()) +
                                heads + 2 * kQueryRows * sizeof(float) + 8 * 64;
  const std::size_t row = static_cast<std::size_t>(s.width) * sizeof(float);
  WorkerNeeds needs;
  needs.scratch_bytes = std::max({kTileBytes, attention, row});
  if (!products_take(s.compute)) {
    const std::int64_t depth = std::min(kTileDepth, std::max({3 * s.width, s.mlp, s.vocabulary, s.max_rows}));
    const std::int64_t left = std::max(kTileRows * depth, scores);
    const std::int64_t right = std::max(kTileColumns * depth, s.context * s.head_width);
    needs.widened_a_bytes = static_cast<std::size_t>(left) * sizeof(float);
    needs.widened_b_bytes = static_cast<std::size_t>(right) * sizeof(float);
  }
  return needs;
}

}  // namespace terrace
