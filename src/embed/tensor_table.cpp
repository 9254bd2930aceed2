#include "src/embed/tensor_table.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/base/fail.h"

namespace terrace {

TensorTable::TensorTable(std::vector<OptimizerTensor> tensors, const UnitBounds& bounds)
    : tensors_(std::move(tensors)) {
  if (tensors_.empty()) fail(ErrorCode::invalid_argument, "no tensor is registered; wanted at least 1");
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    check_tensor(tensors_[i], i);
    const auto [first, added] = index_.emplace(tensors_[i].name, i);
    if (!added) {
      fail(ErrorCode::invalid_argument, "tensors {} and {} are both named '{}'", first->second, i,
           tensors_[i].name);
    }
    groups_ = std::max(groups_, tensors_[i].group + 1);
  }
  cut_units(bounds);
}

void TensorTable::check_tensor(const OptimizerTensor& tensor, std::size_t index) const {
  constexpr std::uint64_t kMostNumel = std::uint64_t{1} << 44;
  constexpr std::uint32_t kMostGroups = 1u << 16;
  const auto refuse = [&](const std::string& what) {
    fail(ErrorCode::invalid_argument, "tensor '{}' (number {}): {}", tensor.name, index, what);
  };
  if (tensor.name.empty()) refuse("its name is empty");
  try {
    static_cast<void>(nlohmann::json(tensor.name).dump());
  } catch (const nlohmann::json::exception&) {
    fail(ErrorCode::invalid_argument, "tensor number {}: its name is not UTF-8", index);
  }
  if (tensor.numel == 0 || tensor.numel > kMostNumel)
    refuse(fmt::format("{} elements; wanted 1 to {}", tensor.numel, kMostNumel));
  if (tensor.parameters == nullptr) refuse("its parameters are a null pointer");
  if (tensor.parameter_type != ElementType::fp32 && tensor.parameter_type != ElementType::bf16)
    refuse("its parameters are neither fp32 nor bf16");
  if (tensor.gradient_type > ElementType::fp16) refuse("its gradients are neither fp32, bf16 nor fp16");
  if (tensor.group >= kMostGroups)
    refuse(fmt::format("group {}; wanted below {}", tensor.group, kMostGroups));
}

void TensorTable::cut_units(const UnitBounds& bounds) {
  std::uint64_t used = 0;
  for (std::uint32_t t = 0; t < tensors_.size(); ++t) {
    const std::uint64_t numel = tensors_[t].numel;
    for (std::uint64_t begin = 0; begin < numel;) {
      const std::uint64_t left = numel - begin;
      const bool full = units_.empty() || units_.back().size() == bounds.tensors ||
                        used + std::min(left, bounds.numel) > bounds.numel;
      if (full) {
        units_.emplace_back();
        used = 0;
      }
      const std::uint64_t part = std::min(left, bounds.numel);
      units_.back().push_back({t, begin, part, used});
      used += part;
      begin += part;
    }
    last_unit_.push_back(static_cast<std::uint32_t>(units_.size() - 1));
  }
}

const OptimizerTensor& TensorTable::at(std::size_t tensor) const {
  if (tensor >= size())
    fail(ErrorCode::not_found, "there is no tensor number {}; {} are registered", tensor, size());
  return tensors_[tensor];
}

std::size_t TensorTable::index_of(std::string_view name) const {
  const auto found = index_.find(name);
  if (found == index_.end())
    fail(ErrorCode::not_found, "no tensor is named '{}'; {} are registered", name, size());
  return found->second;
}

DType TensorTable::parameter_dtype() const {
  const auto is_bf16 = [](const OptimizerTensor& tensor) {
    return tensor.parameter_type == ElementType::bf16;
  };
  return std::all_of(tensors_.begin(), tensors_.end(), is_bf16) ? DType::bf16 : DType::f32;
}

DType TensorTable::gradient_dtype() const {
  const auto is_bf16 = [](const OptimizerTensor& tensor) {
    return tensor.gradient_type == ElementType::bf16;
  };
  return std::all_of(tensors_.begin(), tensors_.end(), is_bf16) ? DType::bf16 : DType::f32;
}

ModelShape TensorTable::shape(DType gradient) const {
  ModelShape shape;
  shape.param_dtype = parameter_dtype();
  shape.grad_dtype = gradient;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    UnitShape unit;
    unit.name = fmt::format("tensors {}", u);
    for (const TensorPart& part : units_[u]) {
      const OptimizerTensor& tensor = tensors_[part.tensor];
      unit.tensors.push_back({tensor.name, part.numel, tensor.group, part.begin});
    }
    unit.backward_reads_params = false;
    unit.forward_flops = static_cast<double>(unit.numel());
    unit.backward_flops = 2 * unit.forward_flops;
    shape.units.push_back(std::move(unit));
  }
  UnitShape loss;
  loss.name = "loss";
  loss.backward_reads_params = false;
  shape.units.push_back(std::move(loss));
  return shape;
}

std::string TensorTable::identity() const {
  nlohmann::ordered_json json;
  json["tensors"] = size();
  for (std::size_t t = 0; t < size(); ++t) {
    json["tensor " + tensors_[t].name] = fmt::format("number {}, {} elements", t, tensors_[t].numel);
  }
  return json.dump();
}

}  // namespace terrace
