// The fold of contract C1 over one rank's part of a gradient.
#pragma once

#include <span>

#include "src/collectives/collective.h"

namespace terrace {

// Folds contributions[k] (each of accumulator.size() elements of `dtype`, any alignment; in the order of
// folding, absent ones left out) onto `accumulator`: Communicator::reduce_scatter says how. Returns
// contributions.size() and whether the rounded sum is finite. Cost: reads every contribution once and reads
// and writes the accumulator once, in tiles over parallel_for (so: not inside one).
FoldResult ordered_fold(std::span<const std::byte* const> contributions, DType dtype,
                        std::span<float> accumulator, FoldRound round, std::span<double> block_sums);

}  // namespace terrace
