#include "src/model/gpt_executor.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>

#include "src/base/fail.h"
#include "src/base/parallel_for.h"
#include "src/base/units.h"
#include "src/model/block.h"
#include "src/model/describe.h"
#include "src/model/embedding_unit.h"
#include "src/model/product_shapes.h"

namespace terrace {
namespace {

const ModelSpec& checked(const ModelSpec& spec, std::uint32_t max_samples, DType param_dtype,
                         DType grad_dtype) {
  describe(spec, max_samples, param_dtype, grad_dtype);
  return spec;
}

void need(const ComputeCall& call, std::initializer_list<Role> roles) {
  for (const Role role : roles) {
    check(call.operand[static_cast<std::size_t>(role)] != nullptr, "{} of unit {}: operand {} is missing",
          name_of(call.kind), call.unit, static_cast<int>(role));
  }
}

}  // namespace

GptExecutor::GptExecutor(const ModelSpec& spec, std::uint32_t max_samples, DType param_dtype,
                         DType grad_dtype)
    : spec_(checked(spec, max_samples, param_dtype, grad_dtype)),
      sizes_(spec, max_samples, param_dtype, grad_dtype),
      workers_(worker_needs(sizes_)) {
  workers_.reserve(static_cast<std::size_t>(parallel_threads()));
  for (const UnitTensors& unit : unit_tensors(spec)) {
    unit_numel_.push_back(0);
    for (const TensorInit& tensor : unit.tensors) unit_numel_.back() += tensor.numel();
  }
}

void GptExecutor::set_contribution(std::uint32_t index, std::span<const std::uint32_t> tokens,
                                   std::span<const std::int32_t> targets) {
  const auto max_tokens = static_cast<std::size_t>(sizes_.max_rows);
  if (tokens.size() % spec_.context != 0 || tokens.size() > max_tokens || targets.size() != tokens.size()) {
    fail(ErrorCode::invalid_argument,
         "contribution {}: wanted whole samples of {} tokens, at most {} tokens, and as many targets; got {} "
         "and {}",
         index, spec_.context, max_tokens, tokens.size(), targets.size());
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= spec_.vocabulary || targets[i] >= static_cast<std::int64_t>(spec_.vocabulary)) {
      fail(ErrorCode::invalid_argument,
           "contribution {}, place {}: token {} and target {}; model.vocabulary is {}", index, i, tokens[i],
           targets[i], spec_.vocabulary);
    }
  }
  if (index >= contributions_.size()) contributions_.resize(index + 1);
  Contribution& contribution = contributions_[index];
  contribution.tokens.assign(tokens.begin(), tokens.end());
  contribution.targets.assign(targets.begin(), targets.end());
  contribution.loss_sum = 0;
  contribution.has_loss = false;
}

void GptExecutor::set_divisor(std::uint64_t target_tokens) {
  check(target_tokens > 0, "a divisor of 0 target tokens");
  divisor_ = target_tokens;
}

void GptExecutor::set_loss_scale(double scale) {
  if (!(scale > 0) || !std::isfinite(scale)) {
    fail(ErrorCode::invalid_argument, "loss scale: wanted a finite number above 0, got {}", scale);
  }
  loss_scale_ = scale;
}

void GptExecutor::watch_row(std::int64_t row) {
  watched_row_ = row;
  watched_logits_.assign(row < 0 ? 0 : spec_.vocabulary, 0.0f);
}

void GptExecutor::run(const ComputeCall& call) {
  check(call.unit < unit_numel_.size(), "unit {} of {}", call.unit, unit_numel_.size());
  check(call.contribution < contributions_.size(), "contribution {} was never set", call.contribution);
  Contribution& contribution = contributions_[call.contribution];
  if (contribution.tokens.empty()) {
    run_empty(call, contribution);
    return;
  }
  switch (sizes_.compute) {
    case DType::f32:
      return run_as<float>(call, contribution);
    case DType::bf16:
      return run_as<bf16>(call, contribution);
    case DType::f16:
      return run_as<f16>(call, contribution);
  }
}

template <typename T>
void GptExecutor::run_as(const ComputeCall& call, Contribution& contribution) {
  const LayerContext context{sizes_, workers_, static_cast<std::int64_t>(contribution.tokens.size())};
  if (call.unit == 0) {
    run_embedding<T>(call, contribution, context);
  } else if (call.unit == spec_.head_unit()) {
    run_head<T>(call, contribution, context);
  } else {
    run_block<T>(call, context);
  }
  if (call.kind == OpKind::backward) clear_padding(call);
}

template <typename T>
void GptExecutor::run_embedding(const ComputeCall& call, const Contribution& contribution,
                                const LayerContext& context) {
  if (call.kind == OpKind::forward) {
    need(call, {Role::params, Role::output});
    embedding_forward<T>(context, call.at<T>(Role::params), contribution.tokens, call.at<T>(Role::output));
    return;
  }
  check(call.kind == OpKind::backward, "{} of the embedding", name_of(call.kind));
  need(call, {Role::output_grad, Role::grads, Role::workspace});
  if (sizes_.tied) need(call, {Role::shared_grad});
  embedding_backward<T>(context, contribution.tokens, call.at<T>(Role::output_grad),
                        sizes_.tied ? call.at<float>(Role::shared_grad) : nullptr,
                        {call.at<std::byte>(Role::grads), sizes_.grad}, call.at<std::byte>(Role::workspace));
}

template <typename T>
void GptExecutor::run_block(const ComputeCall& call, const LayerContext& context) {
  need(call, {Role::params, Role::input, Role::saved, Role::workspace});
  const T* params = call.at<T>(Role::params);
  const T* in = call.at<T>(Role::input);
  auto* saved = call.at<std::byte>(Role::saved);
  auto* workspace = call.at<std::byte>(Role::workspace);
  if (call.kind == OpKind::backward) {
    need(call, {Role::output_grad, Role::input_grad, Role::grads});
    block_backward<T>(context, params, in, saved, call.at<T>(Role::output_grad), call.at<T>(Role::input_grad),
                      {call.at<std::byte>(Role::grads), sizes_.grad}, workspace);
    return;
  }
  if (call.kind == OpKind::forward) need(call, {Role::output});
  block_forward<T>(context, params, in, call.kind == OpKind::forward ? call.at<T>(Role::output) : nullptr,
                   saved, workspace);
}

template <typename T>
void GptExecutor::run_head(const ComputeCall& call, Contribution& contribution, const LayerContext& context) {
  need(call, {Role::params, Role::input, Role::workspace});
  if (sizes_.tied) need(call, {Role::shared_params});
  const T* params = call.at<T>(Role::params);
  const T* tied = sizes_.tied ? call.at<T>(Role::shared_params) : nullptr;
  const T* in = call.at<T>(Role::input);
  auto* workspace = call.at<std::byte>(Role::workspace);
  if (call.kind == OpKind::forward) {
    if (watched_row_ >= context.rows) {
      fail(ErrorCode::invalid_argument, "the watched row is {}; contribution {} has {}", watched_row_,
           call.contribution, context.rows);
    }
    contribution.loss_sum = head_forward<T>(context, params, tied, contribution.targets, in, workspace,
                                            {watched_row_, watched_logits_.data()});
  } else {
    check(call.kind == OpKind::backward, "{} of the head", name_of(call.kind));
    check(divisor_ > 0, "backward before set_divisor");
    need(call, {Role::input_grad, Role::grads});
    if (sizes_.tied) need(call, {Role::shared_grad});
    contribution.loss_sum = head_backward<T>(
        context, params, tied, contribution.targets, loss_scale_ / static_cast<double>(divisor_), in,
        call.at<T>(Role::input_grad), {call.at<std::byte>(Role::grads), sizes_.grad},
        sizes_.tied ? call.at<float>(Role::shared_grad) : nullptr, workspace);
  }
  contribution.has_loss = true;
}

// No samples: a loss of 0 and gradients of 0.
void GptExecutor::run_empty(const ComputeCall& call, Contribution& contribution) const {
  const bool head = call.unit == spec_.head_unit();
  if (head) contribution.has_loss = true;
  if (call.kind != OpKind::backward) return;
  need(call, {Role::grads});
  std::memset(call.at<std::byte>(Role::grads), 0, unit_numel_[call.unit] * dtype_bytes(sizes_.grad));
  clear_padding(call);
  if (!head || !sizes_.tied) return;
  need(call, {Role::shared_grad});
  const auto shared_numel = static_cast<std::size_t>(sizes_.vocabulary * sizes_.width);
  std::memset(call.at<std::byte>(Role::shared_grad), 0, shared_numel * sizeof(float));
}

void GptExecutor::clear_padding(const ComputeCall& call) const {
  const std::uint64_t numel = unit_numel_[call.unit];
  const std::uint64_t padding = round_up(numel, kBlockNumel) - numel;
  const std::size_t element = dtype_bytes(sizes_.grad);
  std::memset(call.at<std::byte>(Role::grads) + numel * element, 0, padding * element);
}

double GptExecutor::loss_sum(std::uint32_t index) const {
  check(index < contributions_.size() && contributions_[index].has_loss, "contribution {} has no loss yet",
        index);
  return contributions_[index].loss_sum;
}

namespace {

// An address range whose pages are zeros and take memory only where they are written.
class ZeroRange {
 public:
  explicit ZeroRange(std::size_t bytes)
      : bytes_(bytes),
        data_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                     0)) {
    if (mapped()) ::madvise(data_, bytes_, MADV_NOHUGEPAGE);
  }
  ~ZeroRange() {
    if (mapped()) ::munmap(data_, bytes_);
  }
  ZeroRange(const ZeroRange&) = delete;
  ZeroRange& operator=(const ZeroRange&) = delete;

  bool mapped() const { return data_ != MAP_FAILED; }
  void* data() const { return data_; }

 private:
  std::size_t bytes_;
  void* data_;
};

}  // namespace

void GptExecutor::warm_up() {
  std::vector<ProductShape> shapes = product_shapes(sizes_);
  std::int64_t operand_numel = 0, result_numel = 0;
  for (const ProductShape& shape : shapes) {
    operand_numel = std::max({operand_numel, shape.a_span(), shape.b_span()});
    result_numel = std::max(result_numel, shape.c_span());
  }
  const ZeroRange operands(static_cast<std::size_t>(operand_numel) * sizes_.element_bytes());
  if (!operands.mapped()) return;
  for (ProductShape& shape : shapes) shape.a.data = shape.b.data = operands.data();
  const auto threads = static_cast<std::size_t>(parallel_threads());
  std::deque<WorkerPool::Lease> workers;  // all at once: each is another
  for (std::size_t i = 0; i < threads; ++i) workers.emplace_back(workers_);
  parallel_for(threads, [&](std::size_t i) {
    std::memset(workers[i]->scratch(), 0, worker_needs(sizes_).scratch_bytes);
    const ZeroRange result(static_cast<std::size_t>(result_numel) * sizeof(float));
    if (!result.mapped()) return;
    for (const ProductShape& shape : shapes) {
      workers[i]->multiply(shape.rows, shape.columns, shape.depth, shape.a, shape.b,
                           static_cast<float*>(result.data()), shape.c_stride, shape.accumulate);
    }
  });
}

std::size_t GptExecutor::library_bytes() const {
  std::size_t bytes = workers_.bytes() + watched_logits_.capacity() * sizeof(float);
  for (const Contribution& c : contributions_) {
    bytes += c.tokens.capacity() * sizeof(std::uint32_t) + c.targets.capacity() * sizeof(std::int32_t);
  }
  return bytes;
}

}  // namespace terrace
