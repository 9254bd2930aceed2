// The tensors that an embedding program registers, laid out as units for the planner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "src/plan/model_shape.h"
#include "terrace/optimizer.h"

namespace terrace {

constexpr DType dtype_of(ElementType type) {
  return type == ElementType::fp32 ? DType::f32 : type == ElementType::bf16 ? DType::bf16 : DType::f16;
}

// A tensor in a unit, or a part of one that is larger than a unit.
struct TensorPart {
  std::uint32_t tensor = 0;
  std::uint64_t begin = 0;  // element of the tensor
  std::uint64_t numel = 0;
  std::uint64_t offset = 0;  // element of the unit's flat parameter
};

// Bounds of a unit: constants (tests take smaller ones), since the blocks of a flat parameter cut the sums of
// squares. A chunk's trailer has room for kMaxSegments tensors.
struct UnitBounds {
  std::uint64_t numel = std::uint64_t{4} << 20;
  std::size_t tensors = 256;
};

// Thread contract: constant after construction.
class TensorTable {
 public:
  // Throws invalid_argument by the tensor's name.
  explicit TensorTable(std::vector<OptimizerTensor> tensors, const UnitBounds& bounds = {});

  std::size_t size() const { return tensors_.size(); }
  const OptimizerTensor& operator[](std::size_t tensor) const { return tensors_[tensor]; }
  // Throws not_found.
  const OptimizerTensor& at(std::size_t tensor) const;
  std::size_t index_of(std::string_view name) const;

  // In order of registration: a unit takes tensors until the next would not fit; a tensor larger than a unit
  // is cut.
  const std::vector<std::vector<TensorPart>>& units() const { return units_; }
  std::uint32_t last_unit(std::size_t tensor) const { return last_unit_[tensor]; }
  std::uint32_t groups() const { return groups_; }  // the largest named, and one

  // Wide enough for every tensor's.
  DType parameter_dtype() const;
  DType gradient_dtype() const;

  // The units, and an empty one that stands for the loss. FLOPs are elements: what spreads fetches over a
  // step.
  ModelShape shape(DType gradient) const;
  // JSON: each tensor's place and size.
  std::string identity() const;

 private:
  void check_tensor(const OptimizerTensor& tensor, std::size_t index) const;
  void cut_units(const UnitBounds& bounds);

  std::vector<OptimizerTensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> index_;
  std::vector<std::vector<TensorPart>> units_;
  std::vector<std::uint32_t> last_unit_;
  std::uint32_t groups_ = 0;
};

}  // namespace terrace
