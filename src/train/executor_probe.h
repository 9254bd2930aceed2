// Hands every call on to another executor and, when told to, keeps a copy of one operand of each unit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "src/plan/model_shape.h"
#include "src/runtime/executor.h"

namespace terrace {

// Thread contract: as Executor; watch() and take() between programs.
class ExecutorProbe : public Executor {
 public:
  // By contribution and unit; empty where no such call came.
  using Copies = std::vector<std::vector<std::vector<std::byte>>>;

  explicit ExecutorProbe(Executor& inner) : inner_(inner) {}

  // From now on: after each call of that kind, the operand of that role, `unit_bytes[unit]` of it. Memory:
  // that, for each contribution.
  void watch(OpKind kind, Role role, std::vector<std::uint64_t> unit_bytes) {
    kind_ = kind;
    role_ = role;
    unit_bytes_ = std::move(unit_bytes);
    copies_.clear();
  }
  // What was kept; watches no more.
  Copies take() {
    unit_bytes_.clear();
    return std::exchange(copies_, {});
  }

  void run(const ComputeCall& call) override {
    inner_.run(call);
    if (unit_bytes_.empty() || call.kind != kind_) return;
    if (call.contribution >= copies_.size()) copies_.resize(call.contribution + 1);
    auto& units = copies_[call.contribution];
    units.resize(unit_bytes_.size());
    const std::byte* data = call.operand[static_cast<std::size_t>(role_)];
    if (data != nullptr) units[call.unit].assign(data, data + unit_bytes_[call.unit]);
  }
  bool touched(std::uint32_t unit, std::uint32_t tensor) const override {
    return inner_.touched(unit, tensor);
  }
  void cancel() override { inner_.cancel(); }

 private:
  Executor& inner_;
  OpKind kind_ = OpKind::forward;
  Role role_ = Role::params;
  std::vector<std::uint64_t> unit_bytes_;  // empty: nothing is watched
  Copies copies_;
};

// Bytes of each unit's elements, padding left out.
inline std::vector<std::uint64_t> unit_bytes(const ModelShape& model, DType dtype) {
  std::vector<std::uint64_t> bytes;
  for (const UnitShape& unit : model.units) bytes.push_back(unit.numel() * dtype_bytes(dtype));
  return bytes;
}

}  // namespace terrace
