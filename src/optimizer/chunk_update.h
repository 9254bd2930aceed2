// What is done to a chunk: fold a summand onto its sum, update the optimizer state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cpu/adamw.h"
#include "kernels/cpu/gradient.h"
#include "src/base/dtype.h"
#include "src/base/units.h"

namespace terrace {

// A tensor's elements within a chunk.
struct ChunkSegment {
  std::uint64_t offset = 0;  // from the chunk's first element
  std::uint64_t numel = 0;
  std::uint32_t group = 0;  // index of its hyperparameters
  std::uint64_t step = 1;   // the tensor's count of updates, this one included
  bool touched = true;      // false: no contribution touched the tensor, its state stays as it is
};

struct GradientView {
  const void* data = nullptr;
  DType dtype = DType::bf16;
};
struct ParameterView {
  void* data = nullptr;
  DType dtype = DType::bf16;
};

// Elements that one thread takes at a time: a constant, so that threads never show in a result.
inline constexpr std::uint64_t kUpdatePieceNumel = 16 * kBlockNumel;

// AdamW (kernels/cpu/adamw.h) over the chunk's segments, each with groups[segment.group] and its own step
// count; gradients are multiplied by `grad_scale`. Every array holds `numel` elements. Where the source and
// target streams differ, the target becomes complete: untouched segments and the padding between segments are
// copied. In the parameter output an untouched segment is its master copy rounded, padding is 0. Segments are
// in order and do not overlap (throws internal otherwise); a group out of range or a bad hyperparameter
// throws invalid_argument before anything is written. Runs on parallel_for; the same bits for any number of
// threads.
void update_chunk(const AdamWSource& source, const AdamWTarget& target, GradientView gradient,
                  ParameterView parameter, std::uint64_t numel, std::span<const ChunkSegment> segments,
                  std::span<const AdamWHyper> groups, float grad_scale);

// fold() of kernels/cpu/gradient.h over a chunk, in parallel. `block_sums` has div_up(numel, kBlockNumel)
// places when position.last, and is not looked at otherwise. Returns whether all is finite.
bool fold_chunk(GradientView gradient, float* accumulator, std::uint64_t numel, FoldPosition position,
                std::span<double> block_sums);

// Adds up `count` gradients of `numel` elements each that stand one after another, in fp32 in their order,
// and rounds the sum once to their dtype, in parallel: out[i] = round(fl32(...fl32(g_0[i] + g_1[i])... +
// g_n[i])). `out` has room for numel elements beside them. One gradient comes out as it is, -0 and all.
void sum_gradients(GradientView gradients, std::uint64_t count, std::uint64_t numel, void* out);

// Rounds `numel` fp32 values to `dtype`, in parallel.
void round_values(const float* values, DType dtype, std::uint64_t numel, void* out);

// gradient_stats() over a chunk, in parallel: for a gradient that needs no folding, or an accumulator that
// holds it.
bool chunk_stats(GradientView gradient, std::uint64_t numel, std::span<double> block_sums);

// Elements [begin, end) of a chunk.
struct ElementRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// Makes the sums of the blocks that `ranges` (ascending, disjoint) touch again, with zeros in their place:
// what fold_chunk() or chunk_stats() of the whole chunk gave, without these elements, finite or not.
// `gradient` is the rounded sum: the single summand, or the accumulator after its last fold; it is only read.
// Cost: one pass over the blocks that are touched in part.
void leave_out(GradientView gradient, std::uint64_t numel, std::span<const ElementRange> ranges,
               std::span<double> block_sums);

}  // namespace terrace
