// The in-house executor: runs the compute operations of a step program for a ModelSpec.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/model/head_unit.h"
#include "src/model/layer.h"
#include "src/model/model_spec.h"
#include "src/runtime/executor.h"

namespace terrace {

// Operands of a call, with the sizes of describe():
//   forward     params, [shared_params], input (not unit 0), output (not the head), saved (blocks), workspace
//   recompute   params, input, saved, workspace (forward's)                       blocks only
//   backward    params, [shared_params], input, saved, output_grad, input_grad, grads, [shared_grad],
//   workspace
// `saved` is always wanted, also where nothing will read it. A workspace of 0 bytes may be null. The head's
// backward is its forward too and has no output_grad; its forward (evaluation) gives the loss alone.
// shared_params and shared_grad belong to a tied head; shared_grad is also read by the embedding's backward.
//
// Thread contract: set_contribution, set_divisor and set_loss_scale before the calls that need them; run() on
// one thread at a time, which it makes single-threaded for OpenMP. Memory: beside the operands, a scratch for
// each of the parallel_threads() there are at construction; see library_bytes().
class GptExecutor : public Executor {
 public:
  // Throws as describe().
  GptExecutor(const ModelSpec& spec, std::uint32_t max_samples, DType param_dtype, DType grad_dtype);

  // The tokens [samples, context] of contribution `index` and the target of each; a negative target counts
  // for nothing, and no tokens at all give a loss and gradients of 0. Both are copied. Throws
  // invalid_argument, naming the contribution and place, for a size that is not whole samples or more than
  // max_samples, and for a token or target outside the vocabulary.
  void set_contribution(std::uint32_t index, std::span<const std::uint32_t> tokens,
                        std::span<const std::int32_t> targets);

  // Gradients are those of (sum of losses) / divisor: the real target tokens of the whole step. At least 1.
  void set_divisor(std::uint64_t target_tokens);
  // From now on gradients are those of scale * (sum of losses) / divisor, so that small ones do not vanish in
  // fp16; loss_sum() is not scaled. 1 until set. The rows' gradients are multiplied by fl32(scale / divisor):
  // a scale that is a power of two changes their exponents alone, any other one is one more rounding of
  // 2^-24. What leaves the range of the compute or gradient dtype is infinite or NaN there, and stays so up
  // to the gradients of parameters. Throws invalid_argument unless positive and finite.
  void set_loss_scale(double scale);

  void run(const ComputeCall& call) override;

  // The sum of the losses of contribution `index` over its targets in order, from its last forward or
  // backward of the head. Throws internal when there was none.
  double loss_sum(std::uint32_t index) const;

  // From now on the head's forward keeps the fp32 logits of row `row` of its contribution (sample * context +
  // position): what sampling reads. A negative row keeps none. Forward throws invalid_argument when the
  // contribution has no such row.
  void watch_row(std::int64_t row);
  // [vocabulary], of the last forward of the head.
  const std::vector<float>& watched_logits() const { return watched_logits_; }

  // Prepares and runs every matrix product of the model once on every worker, on operands of zeros that take
  // no memory, so that what the library holds for them is there before the first step (and can be measured).
  // Cost: well below a second. Does nothing where the address space is too small for it.
  void warm_up();

  // What the executor holds beside operands: a scratch for each compute thread (from the start), oneDNN's
  // scratchpads (once every kind of call has run), tokens, watched logits.
  std::size_t library_bytes() const;

 private:
  struct Contribution {
    std::vector<std::uint32_t> tokens;
    std::vector<std::int32_t> targets;
    double loss_sum = 0;
    bool has_loss = false;
  };
  template <typename T>
  void run_as(const ComputeCall& call, Contribution& contribution);
  template <typename T>
  void run_embedding(const ComputeCall& call, const Contribution& contribution, const LayerContext& context);
  template <typename T>
  void run_block(const ComputeCall& call, const LayerContext& context);
  template <typename T>
  void run_head(const ComputeCall& call, Contribution& contribution, const LayerContext& context);
  void run_empty(const ComputeCall& call, Contribution& contribution) const;
  void clear_padding(const ComputeCall& call) const;

  ModelSpec spec_;
  ModelSizes sizes_;
  WorkerPool workers_;
  std::vector<std::uint64_t> unit_numel_;
  std::vector<Contribution> contributions_;
  std::uint64_t divisor_ = 0;
  double loss_scale_ = 1;
  std::int64_t watched_row_ = -1;
  std::vector<float> watched_logits_;
};

}  // namespace terrace
