#include "src/train/host_overhead.h"

#include "src/base/aligned_memory.h"
#include "src/base/process_memory.h"
#include "src/base/units.h"
#include "src/model/product_shapes.h"
#include "src/train/setup.h"

namespace terrace {

HostOverhead host_overhead(const Config& config, const ModelShape& model, std::uint64_t chunk_numel) {
  const ModelSpec spec = model_spec(config);
  const ModelSizes sizes(spec, config.train.micro_batch, compute_dtype(config), grad_dtype(config));
  const std::uint64_t threads = compute_threads(config);
  const std::uint64_t ranks = local_ranks(config);
  HostOverhead overhead = engine_overhead(config, model, chunk_numel);
  // Measured with oneDNN 2.6 and oneTBB 2021.8: the libraries' own tables and code; on each compute thread
  // buffers for packed operands, a scratchpad, a stack; a prepared product.
  constexpr std::uint64_t kBaseBytes = 8 * kMiB, kThreadBytes = 5 * kMiB / 2, kProductBytes = 6 * kKiB;
  const std::uint64_t stack_bytes = huge_page_support().always ? kHugePageBytes : 0;
  const std::uint64_t products = product_shapes(sizes).size();
  overhead.library_bytes = kBaseBytes + ranks * kLanes * stack_bytes +
                           threads * (kThreadBytes + products * kProductBytes + stack_bytes);
  const WorkerNeeds needs = worker_needs(sizes);
  for (const std::uint64_t bytes : {needs.scratch_bytes, needs.widened_a_bytes, needs.widened_b_bytes}) {
    overhead.scratch_bytes += ranks * threads * AlignedMemory::mapped_bytes_of(bytes);
  }
  // Beside the executor's copies: those of the contribution that is being loaded; logits to sample from.
  const auto rows = static_cast<std::uint64_t>(sizes.max_rows);
  overhead.token_bytes = (config.train.micro_batches + 1 + ranks) * rows * 8 + 4 * config.model.vocabulary;
  return overhead;
}

}  // namespace terrace
