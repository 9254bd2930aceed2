// Gradients on their way to the optimizer: contributions are folded in fp32, and the sums of squares and the
// finite check ride along. `dtype` is the gradient's. Any alignment; one pass; thread-safe. The same bits on
// every target.
#pragma once

#include <cstddef>

#include "src/base/dtype.h"

namespace terrace {

// Where a contribution stands among those of its step. The one that is `last` rounds the sum once to the
// gradient's dtype; a contribution that is both first and last is already rounded.
struct FoldPosition {
  bool first = false;
  bool last = false;
};

// first: accumulator[i] = gradient[i]; otherwise accumulator[i] = fl32(accumulator[i] + gradient[i]). When
// last, the accumulator is left holding the rounded value, as fp32, and block_sums[j] gets the sum of squares
// of the rounded values of block j (kBlockNumel elements from a multiple of it, the tail shorter): sixteen
// double lanes and the tree of lanes-inl.h. block_sums holds div_up(numel, kBlockNumel) values when last and
// is not touched otherwise. Returns whether all rounded values are finite (true when not last); the sum of a
// block where one is not is infinity.
bool fold(const void* gradient, DType dtype, float* accumulator, std::size_t numel, FoldPosition position,
          double* block_sums);

// The same sums and check over a gradient that needs no folding (one contribution): reads only.
bool gradient_stats(const void* gradient, DType dtype, std::size_t numel, double* block_sums);

}  // namespace terrace
