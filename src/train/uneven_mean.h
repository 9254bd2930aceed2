// Two means over one batch that ranks share out: the exact one, and the plain mean of the ranks' means.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "terrace/config.h"
#include "terrace/demo.h"

namespace terrace {

struct Means {
  double exact = 0;  // over all targets of all ranks
  double ranks = 0;  // of the ranks' own means
};

// A batch shared out in one way. With G_r the gradient of the sum of rank r's losses, T_r its targets and
// T = T_0 + ... + T_(N-1): the exact gradient is (G_0 + ... + G_(N-1)) / T, the other
// (G_0 / T_0 + ... + G_(N-1) / T_(N-1)) / N; so for losses. An update is what AdamW adds to a parameter.
struct SharedBatch {
  std::string how;
  std::vector<std::uint64_t> windows, targets;  // by rank
  Means loss, norm;                             // norm: of the whole gradient
  // |difference| / |exact|, Euclidean norms over all parameters.
  double gradient_error = 0, update_error = 0;
  std::string tensor;  // where the gradients differ most, and the element of it
  std::uint64_t element = 0;
  Means gradient, update;
};

struct UnevenMean {
  std::uint64_t step = 0;  // the last of the first epoch, 1 for the first
  std::uint64_t windows = 0, context = 0;
  std::vector<SharedBatch>
      ways;  // even windows; batches filled in turn; even windows, the last rank's padded
};

// Errors and memory: as uneven_mean_demo().
UnevenMean uneven_mean(const Config& config);
std::string to_text(const UnevenMean& demo);

}  // namespace terrace
