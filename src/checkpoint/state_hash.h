// One number for every weight and optimizer state, wherever it lies.
#pragma once

#include "src/base/hash.h"
#include "src/plan/chunk_table.h"
#include "src/runtime/runtime.h"

namespace terrace {

// A sum of the hashes of each block of each unit (master, exp_avg, exp_avg_sq and the step counts of the
// tensors in it): the same for every chunk size, placement and order of visits. Padding counts (it is zero in
// every cut). Thread contract: one thread at a time.
class StateHash {
 public:
  // Both must outlive this.
  StateHash(const ModelShape& model, const std::vector<Chunk>& chunks) : model_(model), chunks_(chunks) {}

  void add(const ChunkState& state);
  Hash128 value() const { return sum_; }

 private:
  const ModelShape& model_;
  const std::vector<Chunk>& chunks_;
  Hash128 sum_;
};

}  // namespace terrace
