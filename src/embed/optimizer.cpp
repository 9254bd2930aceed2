#include "terrace/optimizer.h"

#include <utility>

#include "src/embed/optimizer_backend.h"

namespace terrace {

Optimizer::Optimizer(const Config& config, std::vector<OptimizerTensor> tensors, StoreUse use)
    : backend_(std::make_unique<OptimizerBackend>(config, std::move(tensors), BackendOptions{.use = use})) {}

Optimizer::~Optimizer() = default;

std::size_t Optimizer::tensor(std::string_view name) const {
  return backend_->tensor(name);
}

std::uint64_t Optimizer::steps() const {
  return backend_->steps();
}

const std::string& Optimizer::program_state() const {
  return backend_->program_state();
}

std::string Optimizer::ledger() const {
  return to_text(backend_->plan().ledger);
}

void Optimizer::wait_for_parameters(std::size_t tensor) {
  backend_->wait_for_parameters(tensor);
}

void Optimizer::wait_for_parameters() {
  backend_->wait_for_parameters();
}

void Optimizer::gradient_ready(std::size_t tensor, const void* gradient, ElementType type) {
  backend_->gradient_ready(tensor, gradient, type);
}

void Optimizer::end_contribution() {
  backend_->end_contribution();
}

void Optimizer::announce_step(const OptimizerStep& step) {
  backend_->announce_step(step);
}

OptimizerVerdict Optimizer::step(const OptimizerStep& step) {
  return backend_->step(step);
}

OptimizerVerdict Optimizer::step() {
  return backend_->step();
}

void Optimizer::save() {
  backend_->save();
}

std::string Optimizer::state_hash() {
  return backend_->state_hash();
}

}  // namespace terrace
