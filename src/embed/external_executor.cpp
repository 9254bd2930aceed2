#include "src/embed/external_executor.h"

#include <algorithm>
#include <limits>

#include "src/base/fail.h"
#include "src/base/parallel_for.h"
#include "src/embed/element_cast.h"

namespace terrace {
namespace {

// body(part, begin, end): elements [begin, end) of a part, for all parts of a unit, in parallel.
template <typename Body>
void for_parts(const std::vector<TensorPart>& parts, const Body& body) {
  constexpr std::uint64_t kPiece = 16 * kBlockNumel;
  const std::uint64_t numel = parts.back().offset + parts.back().numel;
  parallel_for(div_up(numel, kPiece), [&](std::size_t piece) {
    const std::uint64_t first = piece * kPiece, last = first + kPiece;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const std::uint64_t begin = std::max(first, parts[p].offset);
      const std::uint64_t end = std::min(last, parts[p].offset + parts[p].numel);
      if (begin < end) body(p, begin - parts[p].offset, end - parts[p].offset);
    }
  });
}

}  // namespace

ExternalExecutor::ExternalExecutor(const TensorTable& tensors, const ModelShape& model,
                                   std::uint32_t contributions, UpdateTime updates, bool stale)
    : tensors_(tensors),
      contributions_(contributions),
      updates_(updates),
      param_dtype_(model.param_dtype),
      grad_dtype_(model.grad_dtype),
      gradients_(tensors.size()),
      missing_(tensors.units().size()),
      units_of_(tensors.size()) {
  for (std::uint32_t u = 0; u < tensors.units().size(); ++u) {
    stale_.emplace_back(tensors.units()[u].size(), stale);
    touched_.emplace_back(tensors.units()[u].size(), false);
    for (const TensorPart& part : tensors.units()[u]) units_of_[part.tensor].push_back(u);
  }
}

void ExternalExecutor::run(const ComputeCall& call) {
  if (call.unit < tensors_.units().size()) call.kind == OpKind::forward ? forward(call) : backward(call);
}

bool ExternalExecutor::touched(std::uint32_t unit, std::uint32_t tensor) const {
  return touched_[unit][tensor] != 0;
}

void ExternalExecutor::cancel() {
  {
    const Lock lock(mutex_);
    cancelled_ = true;
  }
  changed_.notify_all();
}

void ExternalExecutor::begin() {
  const Lock lock(mutex_);
  running_ = true;
  skipped_ = announced_ = false;
  delivered_ = read_ = closed_ = 0;
  open_contribution(lock, 0);
}

void ExternalExecutor::open_contribution(const Lock&, std::uint32_t contribution) {
  open_ = contribution;
  std::fill(gradients_.begin(), gradients_.end(), nullptr);
  for (std::size_t u = 0; u < missing_.size(); ++u)
    missing_[u] = static_cast<std::uint32_t>(tensors_.units()[u].size());
}

void ExternalExecutor::gradient_ready(std::size_t tensor, const void* gradient) {
  bool whole = false;
  {
    const Lock lock(mutex_);
    if (gradients_[tensor] != nullptr) {
      fail(ErrorCode::invalid_argument,
           "the gradient of '{}' is signalled twice in contribution {} of {}; one that is to be added "
           "belongs to the "
           "next contribution",
           tensors_[tensor].name, open_ + 1, contributions_);
    }
    gradients_[tensor] = gradient;
    for (const std::uint32_t unit : units_of_[tensor]) whole = --missing_[unit] == 0 || whole;
  }
  if (whole) changed_.notify_all();
}

void ExternalExecutor::announce() {
  {
    const Lock lock(mutex_);
    announced_ = true;
  }
  changed_.notify_all();
}

void ExternalExecutor::end_contribution() {
  Lock lock(mutex_);
  if (closed_ + 1 >= contributions_) {
    fail(ErrorCode::invalid_argument,
         "end_contribution: contribution {} of {} (train.micro_batches) is the last; step() ends it",
         closed_ + 1, contributions_);
  }
  ++closed_;
  changed_.notify_all();
  changed_.wait(lock, [&] { return read_ >= closed_ || !running_; });
  open_contribution(lock, closed_);
}

void ExternalExecutor::end_step() {
  {
    const Lock lock(mutex_);
    announced_ = true;
    closed_ = contributions_;
  }
  changed_.notify_all();
}

void ExternalExecutor::skip() {
  {
    const Lock lock(mutex_);
    skipped_ = true;
  }
  changed_.notify_all();
}

void ExternalExecutor::end(bool applied) {
  {
    const Lock lock(mutex_);
    running_ = false;
    for (std::size_t u = 0; applied && u < stale_.size(); ++u) {
      for (std::size_t p = 0; p < stale_[u].size(); ++p) stale_[u][p] |= touched_[u][p];
    }
  }
  changed_.notify_all();
}

void ExternalExecutor::wait_for_unit(std::uint32_t unit) {
  Lock lock(mutex_);
  changed_.wait(lock, [&] { return delivered_ > unit || !running_; });
}

void ExternalExecutor::forward(const ComputeCall& call) {
  if (call.contribution > 0) return;
  const std::vector<TensorPart>& parts = tensors_.units()[call.unit];
  std::vector<std::uint8_t>& stale = stale_[call.unit];
  if (std::find(stale.begin(), stale.end(), true) != stale.end()) {
    const auto* params = call.at<const std::byte>(Role::params);
    for_parts(parts, [&](std::size_t p, std::uint64_t begin, std::uint64_t end) {
      if (!stale[p]) return;
      const OptimizerTensor& tensor = tensors_[parts[p].tensor];
      const DType dtype = dtype_of(tensor.parameter_type);
      cast_parameters(
          params + (parts[p].offset + begin) * dtype_bytes(param_dtype_), param_dtype_,
          static_cast<std::byte*>(tensor.parameters) + (parts[p].begin + begin) * dtype_bytes(dtype), dtype,
          end - begin);
    });
    std::fill(stale.begin(), stale.end(), false);
  }
  {
    const Lock lock(mutex_);
    if (cancelled_) fail(ErrorCode::cancelled, "stopped while parameters were handed over");
    delivered_ = call.unit + 1;
  }
  changed_.notify_all();
}

bool ExternalExecutor::may_read(const Lock&, std::uint32_t unit, std::uint32_t contribution) const {
  if (contribution < closed_) return true;
  if (contribution != open_) return false;
  if (contribution + 1 == contributions_) {
    // The verdict, and without one the first update, wants the step's hyperparameters.
    if (unit == 0 || (updates_ == UpdateTime::backward && !announced_)) return false;
  }
  return missing_[unit] == 0;
}

// By part of the unit; null where the contribution did not reach it. Waits.
std::vector<const std::byte*> ExternalExecutor::gradients_of(std::uint32_t unit, std::uint32_t contribution) {
  const std::vector<TensorPart>& parts = tensors_.units()[unit];
  std::vector<const std::byte*> gradients(parts.size());
  Lock lock(mutex_);
  changed_.wait(lock, [&] { return cancelled_ || skipped_ || may_read(lock, unit, contribution); });
  if (cancelled_) fail(ErrorCode::cancelled, "stopped while gradients were waited for");
  if (contribution != open_) return gradients;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const OptimizerTensor& tensor = tensors_[parts[p].tensor];
    const auto* data = static_cast<const std::byte*>(gradients_[parts[p].tensor]);
    if (data != nullptr) gradients[p] = data + parts[p].begin * dtype_bytes(dtype_of(tensor.gradient_type));
  }
  return gradients;
}

void ExternalExecutor::backward(const ComputeCall& call) {
  const std::vector<TensorPart>& parts = tensors_.units()[call.unit];
  const std::vector<const std::byte*> gradients = gradients_of(call.unit, call.contribution);
  auto* const out = call.at<std::byte>(Role::grads);
  const std::size_t element = dtype_bytes(grad_dtype_);
  for_parts(parts, [&](std::size_t p, std::uint64_t begin, std::uint64_t end) {
    std::byte* const to = out + (parts[p].offset + begin) * element;
    if (gradients[p] == nullptr) return fill_absent(to, grad_dtype_, end - begin);
    const DType dtype = dtype_of(tensors_[parts[p].tensor].gradient_type);
    cast_gradient(gradients[p] + begin * dtype_bytes(dtype), dtype, to, grad_dtype_, end - begin);
  });
  const std::uint64_t numel = parts.back().offset + parts.back().numel;
  std::memset(out + numel * element, 0, (round_up(numel, kBlockNumel) - numel) * element);
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const bool before = call.contribution > 0 && touched_[call.unit][p] != 0;
    touched_[call.unit][p] = before || gradients[p] != nullptr;
  }
  const Lock lock(mutex_);
  if (skipped_ && updates_ == UpdateTime::next_forward) {  // the verdict drops it: nothing is left pending
    const float infinity = std::numeric_limits<float>::infinity();
    cast_gradient(reinterpret_cast<const std::byte*>(&infinity), DType::f32, out, grad_dtype_, 1);
  }
  if (call.unit > 0) return;
  read_ = call.contribution + 1;
  changed_.notify_all();
}

}  // namespace terrace
