// Against AdamW written down once more: bit for bit where the same roundings are meant, and in double
// precision.
#include <gtest/gtest.h>

#include "tests/embed/host_program.h"
#include "tests/embed/reference_adamw.h"

namespace terrace::embed_test {
namespace {

std::vector<float> to_floats(const std::vector<std::byte>& bytes, ElementType type) {
  const std::size_t element = dtype_bytes(dtype_of(type));
  std::vector<float> values;
  for (std::size_t at = 0; at < bytes.size(); at += element) values.push_back(value_of(&bytes[at], type));
  return values;
}

// Which contributions of a step reach a tensor: all, some or none, by chance.
bool reaches(std::uint64_t step, std::uint32_t contribution, std::size_t tensor) {
  return (step * 7 + contribution * 5 + tensor * 3) % 4 != 0 && (step + tensor) % 5 != 0;
}

// The contributions of one step, by tensor.
std::vector<std::vector<Contribution>> gradients_of_step(const HostProgram& program, std::uint64_t step,
                                                         std::uint32_t contributions, double loss_scale) {
  std::vector<std::vector<Contribution>> all(program.size());
  for (std::size_t t = 0; t < program.size(); ++t) {
    for (std::uint32_t k = 0; k < contributions; ++k) {
      all[t].emplace_back();
      if (!reaches(step, k, t)) continue;
      all[t].back() = to_floats(program.gradient(step, k, t, loss_scale), program.spec(t).gradient_type);
    }
  }
  return all;
}

OptimizerVerdict step_as_reached(HostProgram& program, OptimizerBackend& optimizer, std::uint64_t step,
                                 std::uint32_t contributions, double loss_scale) {
  RunOptions options{.order_seed = step, .loss_scale = loss_scale};
  for (std::size_t t = 0; t < program.size(); ++t) {
    for (std::uint32_t k = 0; k < contributions; ++k) {
      if (!reaches(step, k, t)) options.missed.insert({k, t});
    }
  }
  return program.step(optimizer, contributions, options);
}

struct Types {
  ElementType parameters;
  ElementType gradients;
  std::string held;  // precision.grad
  DType held_dtype;
};

class ReferenceTest : public testing::TestWithParam<Types> {};

TEST_P(ReferenceTest, BitForBit) {
  const Types types = GetParam();
  TempDir folder;
  int stores = 0;
  for (const std::uint32_t contributions : {1u, 3u}) {
    for (const double clip_norm : {0.0, 1e30}) {
      for (const double loss_scale : {1.0, 1024.0}) {
        const Watchdog watchdog("a run");
        HostProgram program(odd_sizes(types.parameters, types.gradients));
        Config config = disk_config(folder.file(std::to_string(++stores)), contributions, clip_norm, 0.5);
        config.precision.grad = types.held;
        OptimizerBackend optimizer(config, program.registration(), {.bounds = kSmallUnits});
        std::vector<ExactTensor> exact;
        for (std::size_t t = 0; t < program.size(); ++t) exact.emplace_back(program.values(t));
        for (std::uint64_t step = 1; step <= 6; ++step) {
          const auto gradients = gradients_of_step(program, step, contributions, loss_scale);
          const auto groups = HostProgram::hyper(step).groups;
          for (std::size_t t = 0; t < program.size(); ++t) {
            const auto sum = fold_contributions(gradients[t], types.held_dtype);
            if (sum) exact[t].update(*sum, groups[program.spec(t).group], loss_scale);
          }
          EXPECT_FALSE(step_as_reached(program, optimizer, step, contributions, loss_scale).dropped);
          optimizer.wait_for_parameters();
          for (std::size_t t = 0; t < program.size(); ++t) {
            std::vector<float> wanted = exact[t].master;
            if (types.parameters == ElementType::bf16) {
              for (float& value : wanted) value = to_float(to_bf16(value));
            }
            ASSERT_EQ(program.values(t), wanted) << "tensor " << t << " after step " << step << ", "
                                                 << contributions << " contributions, clip " << clip_norm;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ReferenceTest,
                         testing::Values(Types{ElementType::fp32, ElementType::fp32, "auto", DType::f32},
                                         Types{ElementType::fp32, ElementType::fp32, "bf16", DType::bf16},
                                         Types{ElementType::fp32, ElementType::bf16, "auto", DType::bf16},
                                         Types{ElementType::bf16, ElementType::bf16, "auto", DType::bf16},
                                         Types{ElementType::bf16, ElementType::bf16, "fp32", DType::f32},
                                         Types{ElementType::bf16, ElementType::fp32, "auto", DType::f32},
                                         Types{ElementType::bf16, ElementType::fp16, "auto", DType::f32},
                                         Types{ElementType::fp32, ElementType::fp16, "bf16", DType::bf16}),
                         [](const auto& at) {
                           const auto name = [](ElementType type) {
                             return std::string(dtype_name(dtype_of(type)));
                           };
                           return name(at.param.parameters) + "_" + name(at.param.gradients) + "_" +
                                  at.param.held;
                         });

// Tensors of all types at once: the engine holds what is wide enough.
TEST(MixedTypesTest, BitForBit) {
  std::vector<TensorSpec> specs = odd_sizes();
  for (std::size_t t = 0; t < specs.size(); ++t) {
    specs[t].parameter_type = t % 2 == 0 ? ElementType::fp32 : ElementType::bf16;
    specs[t].gradient_type = static_cast<ElementType>(t % 3);
  }
  HostProgram program(specs);
  OptimizerBackend optimizer(memory_config(3, 1e30), program.registration(), {.bounds = kSmallUnits});
  std::vector<ExactTensor> exact;
  for (std::size_t t = 0; t < program.size(); ++t) exact.emplace_back(program.values(t));
  for (std::uint64_t step = 1; step <= 5; ++step) {
    const auto gradients = gradients_of_step(program, step, 3, 8);
    for (std::size_t t = 0; t < program.size(); ++t) {
      const auto sum = fold_contributions(gradients[t], DType::f32);
      if (sum) exact[t].update(*sum, HostProgram::hyper(step).groups[program.spec(t).group], 8);
    }
    step_as_reached(program, optimizer, step, 3, 8);
    optimizer.wait_for_parameters();
    for (std::size_t t = 0; t < program.size(); ++t) {
      std::vector<float> wanted = exact[t].master;
      if (specs[t].parameter_type == ElementType::bf16) {
        for (float& value : wanted) value = to_float(to_bf16(value));
      }
      ASSERT_EQ(program.values(t), wanted) << "tensor " << t << " after step " << step;
    }
  }
}

TEST(DoubleReferenceTest, ClippedStepsStayClose) {
  HostProgram program(odd_sizes());
  OptimizerBackend optimizer(memory_config(2, 0.5), program.registration(), {.bounds = kSmallUnits});
  std::vector<DoubleTensor> exact;
  for (std::size_t t = 0; t < program.size(); ++t) exact.emplace_back(program.values(t));
  bool clipped = false;
  for (std::uint64_t step = 1; step <= 40; ++step) {
    const auto gradients = gradients_of_step(program, step, 2, 16);
    std::vector<std::optional<std::vector<float>>> sums;
    double squares = 0;
    for (std::size_t t = 0; t < program.size(); ++t) {
      sums.push_back(fold_contributions(gradients[t], DType::f32));
      if (!sums.back()) continue;
      for (const float g : *sums.back()) squares += static_cast<double>(g) * static_cast<double>(g);
    }
    const double norm = std::sqrt(squares) / 16;
    const double clip = std::min(1.0, 0.5 / (norm + 1e-6));
    clipped = clipped || clip < 0.9;
    for (std::size_t t = 0; t < program.size(); ++t) {
      if (sums[t])
        exact[t].update(*sums[t], HostProgram::hyper(step).groups[program.spec(t).group], clip / 16);
    }
    EXPECT_NEAR(step_as_reached(program, optimizer, step, 2, 16).grad_norm, norm, 1e-10 * norm);
    optimizer.wait_for_parameters();
    for (std::size_t t = 0; t < program.size(); ++t) {
      const std::vector<float> values = program.values(t);
      for (std::size_t i = 0; i < values.size(); ++i)
        ASSERT_NEAR(static_cast<double>(values[i]), exact[t].p[i], 2e-6) << step << " " << t << " " << i;
    }
  }
  EXPECT_TRUE(clipped);
}

}  // namespace
}  // namespace terrace::embed_test
