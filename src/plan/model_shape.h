// What the planner knows of a model: units, tensors and sizes. Plain data, no device, no file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/base/dtype.h"
#include "src/base/units.h"

namespace terrace {

// A tensor, or a part of one that is cut over several units.
struct TensorShape {
  std::string name;  // "h.0.attn.qkv.weight"; unique in the model but for parts
  std::uint64_t numel = 0;
  std::uint32_t group = 0;  // parameter group (0 = with weight decay, 1 = without, ...)
  std::uint64_t begin = 0;  // element of the whole tensor at which a part starts
  bool frozen = false;      // never updated, and no part of the gradient
  // Blocks of such tensors alone have no optimizer states. Frozen too; of a run that goes on with a store: as
  // the store was made.
  bool master_only = false;
};

// Parameters used together. All bytes are for one micro-batch (one contribution) of the largest size.
struct UnitShape {
  std::string name;
  std::vector<TensorShape> tensors;  // laid end to end in this order: the flat parameter
  std::vector<std::uint32_t>
      shared_units;                // earlier units whose piece it reads too (a tied head: the embedding)
  std::uint64_t output_bytes = 0;  // activation handed to the next unit (0 for the last, or for all)
  std::uint64_t saved_bytes = 0;   // what forward saves for backward, beside its input; recompute rebuilds it
  std::uint64_t forward_workspace_bytes = 0;
  std::uint64_t backward_workspace_bytes = 0;
  std::uint64_t shared_grad_bytes =
      0;  // fp32 gradient this unit hands to shared_units[0] for its use of that piece
  bool backward_reads_params = true;  // false: backward needs no piece (an embedding)
  double forward_flops = 0;
  double backward_flops = 0;  // without recomputation

  std::uint64_t numel() const {
    std::uint64_t sum = 0;
    for (const auto& tensor : tensors) sum += tensor.numel;
    return sum;
  }
  // The flat parameter's length with padding: whole blocks.
  std::uint64_t padded_numel() const { return round_up(numel(), kBlockNumel); }
};

// Unit 0 takes tokens and has no input; the last unit turns its input into the loss: in training its forward
// and backward are one operation (`backward`), so that logits are never kept.
struct ModelShape {
  std::vector<UnitShape> units;
  DType param_dtype = DType::bf16;  // of the working copy that compute reads
  DType grad_dtype = DType::bf16;   // contributions and the summed gradient are rounded to this
};

}  // namespace terrace
