// Who runs the compute operations of a step program: the in-house model, or an embedding host.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "src/plan/program.h"

namespace terrace {

// One forward, recompute or backward of one unit and one contribution. operand[role] points at that operand
// on the device (null when the operation has none); sizes are those of the UnitShape. `params` is the unit's
// flat parameter in param dtype, `grads` its flat gradient in grad dtype (padding included: the executor
// writes zeros there), `shared_grad` is fp32.
struct ComputeCall {
  OpKind kind = OpKind::forward;
  std::uint32_t unit = 0;
  std::uint32_t contribution = 0;
  std::array<std::byte*, kRoles> operand{};

  template <typename T>
  T* at(Role role) const {
    return reinterpret_cast<T*>(operand[static_cast<std::size_t>(role)]);
  }
};

// Thread contract: run() is called from one thread at a time (the compute lane), in program order.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual void run(const ComputeCall& call) = 0;

  // Did any contribution of the step that this rank computed reach this tensor (by its place in the unit)?
  // One that none of any rank reached keeps its state and its step count. Asked by the optimizer lane (with
  // several ranks by the collective lane, and not where the rank had no contribution) after the unit's last
  // backward of the step and before its first backward of the next. A contribution that does not reach a
  // tensor holds -0 in the tensor's part of it (all of them where this says false): the number that leaves
  // every sum as it is.
  virtual bool touched(std::uint32_t unit, std::uint32_t tensor) const {
    (void)unit, (void)tensor;
    return true;
  }

  // May touched() ever say false? With several ranks the answers are joined with the verdict; without one
  // (UpdateTime::backward) such an executor is refused when the runtime is made.
  virtual bool may_leave_untouched() const { return false; }

  // Another lane failed: a run() that waits for something outside the program must throw, now and from now
  // on. Called from any thread, possibly more than once.
  virtual void cancel() {}
};

}  // namespace terrace
