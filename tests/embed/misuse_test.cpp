// Wrong arguments and calls out of turn are refused in words, by the tensor's name, and change nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/embed/host_program.h"

namespace terrace::embed_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// The error of `call`, code first; "none" without one.
template <typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return std::string(error_code_name(error.code())) + ": " + error.what();
  }
  return "none";
}

std::string error_of_opening(const Config& config, std::vector<OptimizerTensor> tensors,
                             StoreUse use = StoreUse::create_or_resume) {
  return error_of([&] { const OptimizerBackend optimizer(config, std::move(tensors), {.use = use}); });
}

class MisuseTest : public testing::Test {
 protected:
  // A tensor whose memory nobody looks at before it is refused.
  OptimizerTensor tensor(const std::string& name, std::uint64_t numel) { return {name, numel, memory_}; }
  Config config() { return disk_config(folder_.path(), 2, 1); }

  TempDir folder_;
  float memory_[8] = {};
};

TEST_F(MisuseTest, Registrations) {
  const Config config = memory_config(1, 1);
  EXPECT_THAT(error_of_opening(config, {}), HasSubstr("no tensor is registered"));
  EXPECT_THAT(error_of_opening(config, {tensor("", 1)}), HasSubstr("its name is empty"));
  EXPECT_THAT(error_of_opening(config, {tensor("\xff\xfe", 1)}), HasSubstr("not UTF-8"));
  EXPECT_THAT(error_of_opening(config, {tensor("w", 0)}), AllOf(HasSubstr("'w'"), HasSubstr("0 elements")));
  EXPECT_THAT(error_of_opening(config, {tensor("w", 1), tensor("b", 2), tensor("w", 2)}),
              HasSubstr("tensors 0 and 2 are both named 'w'"));
  OptimizerTensor bad = tensor("w", 1);
  bad.parameters = nullptr;
  EXPECT_THAT(error_of_opening(config, {bad}), AllOf(HasSubstr("'w'"), HasSubstr("null pointer")));
  bad = tensor("w", 1);
  bad.parameter_type = ElementType::fp16;
  EXPECT_THAT(error_of_opening(config, {bad}), AllOf(HasSubstr("'w'"), HasSubstr("neither fp32 nor bf16")));
  bad = tensor("w", 1);
  bad.gradient_type = static_cast<ElementType>(7);
  EXPECT_THAT(error_of_opening(config, {bad}), HasSubstr("'w'"));
  bad = tensor("w", 1);
  bad.group = ~0u;
  EXPECT_THAT(error_of_opening(config, {bad}), AllOf(HasSubstr("'w'"), HasSubstr("group 4294967295")));
}

TEST_F(MisuseTest, Configurations) {
  Config config = memory_config(1, 1);
  config.tiers.host_bytes = 1000;
  EXPECT_THAT(error_of_opening(config, {tensor("w", 8)}),
              AllOf(HasSubstr("does not fit"), HasSubstr("tiers.host = ")));
  config = memory_config(1, 1);
  config.precision.grad = "fp8";
  EXPECT_THAT(error_of_opening(config, {tensor("w", 8)}), HasSubstr("precision.grad is 'fp8'"));
  config = memory_config(0, 1);
  EXPECT_THAT(error_of_opening(config, {tensor("w", 8)}), HasSubstr("micro_batches is 0"));
  config = memory_config(1, -1);
  EXPECT_THAT(error_of_opening(config, {tensor("w", 8)}), HasSubstr("clip_norm is -1"));
  config = memory_config(1, 1);
  config.placement.chunk_numel = 5000;
  EXPECT_THAT(error_of_opening(config, {tensor("w", 8)}), HasSubstr("placement.chunk_numel = 5000"));
  config = memory_config(1, 1);
  config.placement.optimizer_state = {false, 0, 0, 1};
  EXPECT_THAT(error_of_opening(config, {tensor("w", 8)}), HasSubstr("tiers.nvme names no path"));
  EXPECT_THAT(error_of_opening(memory_config(1, 1), {tensor("w", 8)}, StoreUse::resume),
              AllOf(HasSubstr("nothing to resume"), HasSubstr("store.path is not set")));
  config = this->config();
  EXPECT_THAT(error_of_opening(config, {tensor("w", 8)}, StoreUse::resume), HasSubstr("no store at"));
  config.tiers.nvme[0].size_bytes = 1u << 20;
  EXPECT_THAT(error_of_opening(config, {tensor("w", 8)}), HasSubstr("does not fit"));
  EXPECT_FALSE(std::filesystem::exists(config.store.path));
}

TEST_F(MisuseTest, AnotherProgramsStore) {
  const Config config = this->config();
  { const OptimizerBackend optimizer(config, {tensor("w", 3), tensor("b", 2)}, {}); }
  EXPECT_THAT(error_of_opening(config, {tensor("w", 3), tensor("b", 2)}, StoreUse::create),
              HasSubstr("already holds a store"));
  EXPECT_THAT(error_of_opening(config, {tensor("w", 4), tensor("b", 2)}),
              AllOf(HasSubstr(config.store.path), HasSubstr("tensor w"), HasSubstr("3 elements"),
                    HasSubstr("4 elements")));
  EXPECT_THAT(error_of_opening(config, {tensor("b", 2), tensor("w", 3)}),
              AllOf(HasSubstr("number 0"), HasSubstr("number 1")));
  EXPECT_THAT(error_of_opening(config, {tensor("w", 3), tensor("c", 2)}),
              AllOf(HasSubstr("tensor c = nothing"), HasSubstr("the program registers")));
  EXPECT_THAT(error_of_opening(config, {tensor("w", 3)}), HasSubstr("tensors = 2"));
  const OptimizerBackend optimizer(config, {tensor("w", 3), tensor("b", 2)}, {.use = StoreUse::resume});
  EXPECT_THAT(error_of_opening(config, {tensor("w", 3), tensor("b", 2)}), HasSubstr("busy"));
}

// Each refusal in the middle of a step; the step then ends as if nothing had been asked.
TEST_F(MisuseTest, CallsChangeNothing) {
  const auto run = [&](bool misuse) {
    const Watchdog watchdog("misuse");
    HostProgram program(odd_sizes());
    OptimizerBackend optimizer(memory_config(2, 1), program.registration(), {.bounds = kSmallUnits});
    RunOptions options;
    if (misuse) {
      options.before_call = [&] {
        const std::vector<float> gradient(70000, 1.0f);
        const auto ready = [&](std::size_t tensor, const void* data, ElementType type) {
          return error_of([&] { optimizer.gradient_ready(tensor, data, type); });
        };
        EXPECT_THAT(ready(99, gradient.data(), ElementType::fp32), HasSubstr("no tensor number 99"));
        EXPECT_THAT(ready(3, nullptr, ElementType::fp32), HasSubstr("'layer.3.weight' is a null pointer"));
        EXPECT_THAT(ready(3, gradient.data(), ElementType::bf16),
                    HasSubstr("'layer.3.weight' is bf16; fp32 was registered"));
        EXPECT_THAT(ready(3, gradient.data(), static_cast<ElementType>(9)), HasSubstr("no known type"));
        EXPECT_THAT(error_of([&] { optimizer.wait_for_parameters(99); }), HasSubstr("no tensor number 99"));
        EXPECT_THAT(error_of([&] { optimizer.tensor("layer.77.weight"); }),
                    HasSubstr("not found: no tensor is named 'layer.77.weight'"));
        EXPECT_THAT(error_of([&] { optimizer.step(); }), HasSubstr("has not been announced"));
        OptimizerStep hyper = HostProgram::hyper(1);
        hyper.groups.pop_back();
        EXPECT_THAT(error_of([&] { optimizer.step(hyper); }), HasSubstr("1 groups; the tensors name 2"));
        hyper = HostProgram::hyper(1);
        hyper.groups[1].beta2 = 1;
        EXPECT_THAT(error_of([&] { optimizer.step(hyper); }), HasSubstr("group 1"));
        hyper = HostProgram::hyper(1, 0);
        EXPECT_THAT(error_of([&] { optimizer.announce_step(hyper); }), HasSubstr("loss_scale is 0"));
        hyper = HostProgram::hyper(1);
        hyper.program_state.assign((1u << 20) + 1, 'x');
        EXPECT_THAT(error_of([&] { optimizer.step(hyper); }), HasSubstr("program_state has 1048577 bytes"));
        EXPECT_THAT(error_of([&] { optimizer.save(); }), HasSubstr("store.path is not set"));
      };
    }
    program.run(optimizer, 3, 2, options);
    return std::pair(program.bytes(), optimizer.state_hash());
  };
  EXPECT_EQ(run(true), run(false));
}

TEST_F(MisuseTest, CallsOutOfTurn) {
  const Watchdog watchdog("misuse");
  HostProgram program(odd_sizes());
  OptimizerBackend optimizer(config(), program.registration(), {.bounds = kSmallUnits});
  std::vector<std::vector<std::byte>> gradients;
  for (std::size_t t = 0; t < program.size(); ++t) gradients.push_back(program.gradient(1, 0, t));
  const auto ready = [&](std::size_t t) {
    optimizer.gradient_ready(t, gradients[t].data(), ElementType::fp32);
  };
  ready(4);
  EXPECT_THAT(error_of([&] { ready(4); }),
              HasSubstr("the gradient of 'layer.4.weight' is signalled twice in contribution 1 of 2"));
  EXPECT_THAT(error_of([&] { optimizer.save(); }), HasSubstr("save: step 1 has been given gradients"));
  EXPECT_THAT(error_of([&] { optimizer.state_hash(); }),
              HasSubstr("state_hash: step 1 has been given gradients"));
  optimizer.end_contribution();
  ready(4);  // another contribution
  EXPECT_THAT(error_of([&] { ready(4); }), HasSubstr("twice in contribution 2 of 2"));
  EXPECT_THAT(error_of([&] { optimizer.end_contribution(); }), HasSubstr("contribution 2 of 2"));
  optimizer.announce_step(HostProgram::hyper(1));
  EXPECT_THAT(error_of([&] { optimizer.announce_step(HostProgram::hyper(1)); }),
              HasSubstr("has been announced"));
  EXPECT_THAT(error_of([&] { optimizer.step(HostProgram::hyper(1)); }), HasSubstr("has been announced"));
  EXPECT_EQ(optimizer.step().step, 1u);
  optimizer.save();
  EXPECT_EQ(optimizer.steps(), 1u);
}

TEST_F(MisuseTest, AStoreThatKeepsNothingRefusesToSave) {
  Config config = this->config();
  config.commit.every_steps = 0;
  HostProgram program(odd_sizes());
  OptimizerBackend optimizer(config, program.registration(), {.bounds = kSmallUnits});
  program.run(optimizer, 2, 2);
  EXPECT_THAT(error_of([&] { optimizer.save(); }), HasSubstr("commit.every_steps is 0"));
}

// Whatever has been begun, the destructor ends.
TEST_F(MisuseTest, AnOptimizerMayGoAtAnyCall) {
  for (const bool adversarial : {false, true}) {
    for (const double clip_norm : {0.0, 1.0}) {
      for (int last_call = 0; last_call < 48; ++last_call) {
        struct Gone {};
        const Watchdog watchdog("the destructor");
        HostProgram program({{10}, {9000}, {1}, {5000}});
        std::filesystem::remove_all(folder_.path());
        Config config = disk_config(folder_.path(), 2, clip_norm);
        config.compute.adversarial = adversarial;
        OptimizerBackend optimizer(config, program.registration(), {.bounds = kSmallUnits});
        int calls = 0;
        RunOptions options{.announce = last_call % 2 == 0};
        options.before_call = [&] {
          if (calls++ == last_call) throw Gone();
        };
        try {
          program.run(optimizer, 3, 2, options);
        } catch (const Gone&) {
        }
      }
    }
  }
}

}  // namespace
}  // namespace terrace::embed_test
