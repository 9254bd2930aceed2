// Runs a whole contribution through the executor with every operand in ordinary memory: what a step program
// does, without tiers. Operands are poisoned before they are handed out, so that a value nobody wrote shows.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cpu/cast.h"
#include "src/model/describe.h"
#include "src/model/gpt_executor.h"

namespace terrace::testing {

using Bytes = std::vector<std::byte>;

inline Bytes poisoned(std::size_t bytes) {
  return Bytes(bytes, std::byte{0xFF});
}

class ModelRunner {
 public:
  ModelRunner(const ModelSpec& spec, std::uint32_t max_samples, DType compute, DType grad,
              std::uint64_t seed = 1)
      : spec_(spec),
        shape_(describe(spec, max_samples, compute, grad)),
        executor_(spec, max_samples, compute, grad) {
    const auto tensors = unit_tensors(spec);
    for (std::size_t u = 0; u < shape_.units.size(); ++u) {
      std::vector<float> flat(shape_.units[u].padded_numel(), 0.0f);
      std::uint64_t at = 0;
      for (const TensorInit& tensor : tensors[u].tensors) {
        fill_initial(tensor, seed, 0, tensor.numel(), flat.data() + at);
        at += tensor.numel();
      }
      params_.push_back(poisoned(flat.size() * dtype_bytes(compute)));
      set_params(u, flat);
      grads_.push_back(poisoned(flat.size() * dtype_bytes(grad)));
      outputs_.push_back(poisoned(shape_.units[u].output_bytes));
      output_grads_.push_back(poisoned(shape_.units[u].output_bytes));
      saved_.push_back(poisoned(shape_.units[u].saved_bytes));
    }
    shared_grad_ = poisoned(shape_.units.back().shared_grad_bytes);
  }

  GptExecutor& executor() { return executor_; }
  const ModelShape& shape() const { return shape_; }
  std::uint32_t head() const { return spec_.head_unit(); }

  // Rounded to the compute dtype; `flat` is a unit's flat parameter without or with its padding.
  void set_params(std::size_t unit, std::vector<float> flat) {
    flat.resize(shape_.units[unit].padded_numel(), 0.0f);
    cast_to(shape_.param_dtype, flat.data(), params_[unit].data(), flat.size());
  }
  std::vector<float> params(std::size_t unit) const { return widen(params_[unit], shape_.param_dtype); }
  std::vector<float> grads(std::size_t unit) const { return widen(grads_[unit], shape_.grad_dtype); }
  const Bytes& grad_bytes(std::size_t unit) const { return grads_[unit]; }
  const Bytes& saved_bytes(std::size_t unit) const { return saved_[unit]; }
  const Bytes& output_bytes(std::size_t unit) const { return outputs_[unit]; }

  // Forward, then backward, of contribution 0 as set in the executor; blocks are recomputed when asked.
  double train(bool recompute = false, std::uint32_t contribution = 0) {
    for (std::uint32_t u = 0; u < head(); ++u) forward(u, contribution);
    for (std::uint32_t u = head() + 1; u-- > 0;) {
      if (recompute && u > 0 && u < head()) {
        saved_[u] = poisoned(saved_[u].size());
        run(OpKind::recompute, u, contribution);
      }
      run(OpKind::backward, u, contribution);
    }
    return executor_.loss_sum(contribution);
  }

  double evaluate(std::uint32_t contribution = 0) {
    for (std::uint32_t u = 0; u <= head(); ++u) forward(u, contribution);
    return executor_.loss_sum(contribution);
  }

  void forward(std::uint32_t unit, std::uint32_t contribution = 0) {
    run(OpKind::forward, unit, contribution);
  }

  void run(OpKind kind, std::uint32_t unit, std::uint32_t contribution = 0) {
    const UnitShape& shape = shape_.units[unit];
    const bool backward = kind == OpKind::backward;
    const std::size_t work = backward ? shape.backward_workspace_bytes : shape.forward_workspace_bytes;
    if (workspace_.size() < work) workspace_ = poisoned(work);
    ComputeCall call{kind, unit, contribution, {}};
    const auto set = [&call](Role role, Bytes& bytes) {
      call.operand[static_cast<std::size_t>(role)] = bytes.data();
    };
    if (shape.backward_reads_params || !backward) set(Role::params, params_[unit]);
    if (!shape.shared_units.empty()) set(Role::shared_params, params_[shape.shared_units[0]]);
    if (unit > 0) set(Role::input, outputs_[unit - 1]);
    if (kind == OpKind::forward && shape.output_bytes > 0) set(Role::output, outputs_[unit]);
    if (shape.saved_bytes > 0) set(Role::saved, saved_[unit]);
    if (backward) {
      if (shape.output_bytes > 0) set(Role::output_grad, output_grads_[unit]);
      if (unit > 0) set(Role::input_grad, output_grads_[unit - 1]);
      set(Role::grads, grads_[unit]);
      if (shared_grad_.size() > 0 && (unit == 0 || unit == head())) set(Role::shared_grad, shared_grad_);
    }
    if (work > 0) set(Role::workspace, workspace_);
    executor_.run(call);
  }

 private:
  static std::vector<float> widen(const Bytes& bytes, DType dtype) {
    std::vector<float> out(bytes.size() / dtype_bytes(dtype));
    if (dtype == DType::bf16) {
      cast(reinterpret_cast<const bf16*>(bytes.data()), out.data(), out.size());
    } else if (dtype == DType::f16) {
      cast(reinterpret_cast<const f16*>(bytes.data()), out.data(), out.size());
    } else {
      std::memcpy(out.data(), bytes.data(), bytes.size());
    }
    return out;
  }

  ModelSpec spec_;
  ModelShape shape_;
  GptExecutor executor_;
  std::vector<Bytes> params_, grads_, outputs_, output_grads_, saved_;
  Bytes shared_grad_, workspace_;
};

}  // namespace terrace::testing
