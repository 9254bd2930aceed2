#include "src/model/describe.h"

#include "src/base/fail.h"
#include "src/model/layout.h"

namespace terrace {
namespace {

void set_embedding(const ModelSizes& s, UnitShape& unit) {
  unit.output_bytes = s.activation_bytes();
  unit.backward_workspace_bytes = EmbeddingBackwardWorkspace(s).bytes;
  unit.backward_reads_params = false;
  unit.forward_flops = static_cast<double>(s.max_rows * s.width);
  unit.backward_flops = 2.0 * static_cast<double>(s.max_rows * s.width);
}

void set_block(const ModelSizes& s, UnitShape& unit) {
  unit.output_bytes = s.activation_bytes();
  unit.saved_bytes = BlockSaved(s).bytes;
  unit.forward_workspace_bytes = BlockForwardWorkspace(s).bytes;
  unit.backward_workspace_bytes = BlockBackwardWorkspace(s).bytes;
  const auto rows = static_cast<double>(s.max_rows);
  const auto width = static_cast<double>(s.width);
  const double products = 2 * rows * width * (4 * width + 2 * static_cast<double>(s.mlp));
  const double attention =
      2 * rows * width * static_cast<double>(s.context);  // two causal products, half of each
  unit.forward_flops = products + attention;
  unit.backward_flops = 2 * products + 2.5 * attention;
}

void set_head(const ModelSizes& s, UnitShape& unit) {
  unit.forward_workspace_bytes = HeadWorkspace(s, false).bytes;
  unit.backward_workspace_bytes = HeadWorkspace(s, true).bytes;
  if (s.tied) {
    unit.shared_units.push_back(0);
    unit.shared_grad_bytes = static_cast<std::uint64_t>(s.vocabulary * s.width) * sizeof(float);
  }
  unit.forward_flops = 2.0 * static_cast<double>(s.max_rows) * static_cast<double>(s.width * s.vocabulary);
  unit.backward_flops = 2 * unit.forward_flops;
}

}  // namespace

ModelShape describe(const ModelSpec& spec, std::uint32_t max_samples, DType param_dtype, DType grad_dtype) {
  validate(spec);
  if (max_samples == 0)
    fail(ErrorCode::invalid_argument, "samples of a contribution: wanted at least 1, got 0");
  const ModelSizes sizes(spec, max_samples, param_dtype, grad_dtype);
  ModelShape shape;
  shape.param_dtype = param_dtype;
  shape.grad_dtype = grad_dtype;
  for (const UnitTensors& from : unit_tensors(spec)) {
    UnitShape unit;
    unit.name = from.name;
    for (const TensorInit& tensor : from.tensors) {
      unit.tensors.push_back({tensor.name, tensor.numel(), tensor.decay ? 0u : 1u});
    }
    shape.units.push_back(std::move(unit));
  }
  for (std::size_t u = 0; u < shape.units.size(); ++u) {
    if (u == 0) {
      set_embedding(sizes, shape.units[u]);
    } else if (u == spec.head_unit()) {
      set_head(sizes, shape.units[u]);
    } else {
      set_block(sizes, shape.units[u]);
    }
  }
  return shape;
}

}  // namespace terrace
