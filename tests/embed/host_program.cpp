#include "tests/embed/host_program.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iostream>
#include <random>
#include <thread>

#include "src/base/dtype.h"
#include "src/base/random.h"

namespace terrace::embed_test {
namespace {

std::size_t element_bytes(ElementType type) {
  return dtype_bytes(dtype_of(type));
}

void put(std::byte* element, ElementType type, float value) {
  if (type == ElementType::fp32) {
    std::memcpy(element, &value, sizeof(value));
  } else if (type == ElementType::bf16) {
    const bf16 rounded = to_bf16(value);
    std::memcpy(element, &rounded, sizeof(rounded));
  } else {
    const auto rounded = static_cast<_Float16>(value);
    std::memcpy(element, &rounded, sizeof(rounded));
  }
}

// In [-1, 1).
float noise(std::uint64_t stream, std::uint64_t element, std::uint64_t step) {
  const std::uint64_t bits = random_bits(7, stream, element, step);
  return static_cast<float>(static_cast<std::int64_t>(bits >> 40)) * 0x1p-23f - 1.0f;
}

}  // namespace

std::vector<TensorSpec> odd_sizes(ElementType parameters, ElementType gradients) {
  std::vector<TensorSpec> specs;
  std::uint32_t group = 0;
  for (const std::uint64_t numel : {1u, 4095u, 4096u, 4097u, 10007u, 2u, 65536u, 33u, 20000u}) {
    specs.push_back({numel, parameters, gradients, group});
    group = 1 - group;
  }
  return specs;
}

std::string name_of_tensor(std::size_t tensor) {
  return "layer." + std::to_string(tensor) + ".weight";
}

float value_of(const std::byte* element, ElementType type) {
  if (type == ElementType::fp32) {
    float value = 0;
    std::memcpy(&value, element, sizeof(value));
    return value;
  }
  if (type == ElementType::bf16) {
    bf16 value;
    std::memcpy(&value, element, sizeof(value));
    return to_float(value);
  }
  _Float16 value = 0;
  std::memcpy(&value, element, sizeof(value));
  return static_cast<float>(value);
}

HostProgram::HostProgram(const std::vector<TensorSpec>& specs) : specs_(specs) {
  for (std::size_t t = 0; t < specs_.size(); ++t) {
    const std::size_t element = element_bytes(specs_[t].parameter_type);
    std::vector<std::byte> bytes(specs_[t].numel * element);
    for (std::uint64_t i = 0; i < specs_[t].numel; ++i) {
      put(&bytes[i * element], specs_[t].parameter_type, 0.5f * noise(1000 + t, i, 0));
    }
    parameters_.push_back(std::move(bytes));
  }
  gradients_.resize(size());
}

std::vector<OptimizerTensor> HostProgram::registration() {
  std::vector<OptimizerTensor> tensors;
  for (std::size_t t = 0; t < specs_.size(); ++t) {
    tensors.push_back({name_of_tensor(t), specs_[t].numel, parameters_[t].data(), specs_[t].parameter_type,
                       specs_[t].gradient_type, specs_[t].group});
  }
  return tensors;
}

OptimizerStep HostProgram::hyper(std::uint64_t step, double loss_scale) {
  const double lr = 0.01 / (1.0 + 0.1 * static_cast<double>(step));
  OptimizerStep hyper;
  hyper.groups = {{lr, 0.9, 0.99, 1e-8, 0.1}, {2 * lr, 0.8, 0.95, 1e-7, 0}};
  hyper.loss_scale = loss_scale;
  hyper.program_state = "after step " + std::to_string(step);
  return hyper;
}

std::vector<std::byte> HostProgram::gradient(std::uint64_t step, std::uint32_t contribution,
                                             std::size_t tensor, double loss_scale) const {
  const TensorSpec& spec = specs_[tensor];
  const std::size_t from = element_bytes(spec.parameter_type), to = element_bytes(spec.gradient_type);
  std::vector<std::byte> gradient(spec.numel * to);
  for (std::uint64_t i = 0; i < spec.numel; ++i) {
    const float parameter = value_of(&parameters_[tensor][i * from], spec.parameter_type);
    // Some elements are -0: a sum that begins with +0 would show.
    const float value =
        i % 17 == 3 ? -0.0f : 0.25f * parameter + 0.1f * noise(tensor, i, 100 * step + contribution);
    put(&gradient[i * to], spec.gradient_type, value * static_cast<float>(loss_scale));
  }
  return gradient;
}

std::vector<float> HostProgram::values(std::size_t tensor) const {
  std::vector<float> values;
  const std::size_t element = element_bytes(specs_[tensor].parameter_type);
  for (std::uint64_t i = 0; i < specs_[tensor].numel; ++i)
    values.push_back(value_of(&parameters_[tensor][i * element], specs_[tensor].parameter_type));
  return values;
}

OptimizerVerdict HostProgram::step(OptimizerBackend& optimizer, std::uint32_t contributions,
                                   const RunOptions& options) {
  const std::uint64_t step = optimizer.steps() + 1;
  const OptimizerStep hyper = HostProgram::hyper(step, options.loss_scale);
  const auto before_call = [&] {
    if (options.before_call) options.before_call();
  };
  before_call();
  if (options.announce) optimizer.announce_step(hyper);
  before_call();
  if (!options.wait_for_each) optimizer.wait_for_parameters();
  const auto spoil = [&] {
    for (auto& gradient : gradients_) std::fill(gradient.begin(), gradient.end(), std::byte{0xFF});
  };
  for (std::uint32_t k = 0; k < contributions; ++k) {
    std::vector<std::size_t> order(size());
    for (std::size_t i = 0; i < size(); ++i) order[i] = size() - 1 - i;
    std::mt19937_64 random(options.order_seed + 31 * step + k);
    if (options.order_seed != 0) std::shuffle(order.begin(), order.end(), random);
    const auto signal = [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) {
        const std::size_t t = order[i];
        if (options.untouched.contains({step, t}) || options.missed.contains({k, t})) continue;
        before_call();
        if (options.wait_for_each) optimizer.wait_for_parameters(t);
        gradients_[t] = gradient(step, k, t, options.loss_scale);
        before_call();
        optimizer.gradient_ready(t, gradients_[t].data(), specs_[t].gradient_type);
      }
    };
    if (options.two_threads) {
      std::exception_ptr failure;
      std::thread other([&] {
        try {
          signal(0, size() / 2);
        } catch (...) {
          failure = std::current_exception();
        }
      });
      try {
        signal(size() / 2, size());
      } catch (...) {
        other.join();
        throw;
      }
      other.join();
      if (failure) std::rethrow_exception(failure);
    } else {
      signal(0, size());
    }
    if (k + 1 < contributions) {
      before_call();
      optimizer.end_contribution();
      spoil();
    }
  }
  before_call();
  const OptimizerVerdict verdict = options.announce ? optimizer.step() : optimizer.step(hyper);
  spoil();
  return verdict;
}

void HostProgram::run(OptimizerBackend& optimizer, std::uint64_t last, std::uint32_t contributions,
                      const RunOptions& options) {
  while (optimizer.steps() < last) step(optimizer, contributions, options);
  optimizer.wait_for_parameters();
}

Config memory_config(std::uint32_t contributions, double clip_norm) {
  Config config;
  config.train.micro_batches = contributions;
  config.optimizer.clip_norm = clip_norm;
  config.tiers.device_bytes = 64u << 20;
  config.tiers.host_bytes = 1u << 30;  // many cores bring memory of their own
  config.placement.chunk_numel = 16384;
  config.compute.adversarial = std::getenv("TERRACE_TEST_ADVERSARIAL") != nullptr;
  return config;
}

Config disk_config(const std::string& folder, std::uint32_t contributions, double clip_norm, double share) {
  Config config = memory_config(contributions, clip_norm);
  std::filesystem::create_directories(folder + "/nvme");
  config.store.path = folder + "/store";
  config.tiers.nvme = {{folder + "/nvme", 128u << 20}};
  config.placement.parameters = config.placement.gradients =
      config.placement.optimizer_state = {false, 0, 1 - share, share};
  config.placement.chunk_numel = 8192;
  return config;
}

struct Watchdog::State {
  std::string what;
  std::atomic<bool> ended{false};
  std::thread thread;
};

Watchdog::Watchdog(std::string what) : state_(std::make_unique<State>()) {
  state_->what = std::move(what);
  state_->thread = std::thread([state = state_.get()] {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (!state->ended) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (std::chrono::steady_clock::now() < end) continue;
      std::cerr << "hangs: " << state->what << std::endl;
      std::abort();
    }
  });
}

Watchdog::~Watchdog() {
  state_->ended = true;
  state_->thread.join();
}

}  // namespace terrace::embed_test
