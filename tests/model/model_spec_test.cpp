#include "src/model/model_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "src/model/describe.h"
#include "terrace/error.h"

namespace terrace {
namespace {

std::string refusal(void (*change)(ModelSpec&)) {
  ModelSpec spec;
  change(spec);
  try {
    validate(spec);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ModelSpec, RefusesByKeyAndNumber) {
  using ::testing::AllOf;
  using ::testing::HasSubstr;
  EXPECT_EQ(refusal([](ModelSpec&) {}), "");
  EXPECT_EQ(refusal([](ModelSpec& s) { s.kv_heads = s.heads; }), "");
  EXPECT_THAT(refusal([](ModelSpec& s) { s.heads = 7; }),
              AllOf(HasSubstr("model.heads"), HasSubstr("768"), HasSubstr("7")));
  EXPECT_THAT(refusal([](ModelSpec& s) { s.kv_heads = 4; }),
              AllOf(HasSubstr("model.kv_heads"), HasSubstr("got 4")));
  EXPECT_THAT(refusal([](ModelSpec& s) { s.norm = "rmsnorm"; }),
              AllOf(HasSubstr("model.norm"), HasSubstr("rmsnorm")));
  EXPECT_THAT(refusal([](ModelSpec& s) { s.position = "rope"; }), HasSubstr("model.position"));
  EXPECT_THAT(refusal([](ModelSpec& s) { s.mlp = "swiglu"; }), HasSubstr("model.mlp"));
  EXPECT_THAT(refusal([](ModelSpec& s) { s.layers = 0; }), HasSubstr("model.layers"));
  EXPECT_THAT(refusal([](ModelSpec& s) { s.width = 0; }), HasSubstr("model.width"));
  EXPECT_THAT(refusal([](ModelSpec& s) { s.heads = 0; }), HasSubstr("model.heads"));
  EXPECT_THAT(refusal([](ModelSpec& s) { s.vocabulary = 0; }), HasSubstr("model.vocabulary"));
  EXPECT_THAT(refusal([](ModelSpec& s) { s.vocabulary = 0x80000000u; }), HasSubstr("2147483648"));
  EXPECT_THAT(refusal([](ModelSpec& s) { s.context = 0; }), HasSubstr("model.context"));
  EXPECT_THAT(refusal([](ModelSpec& s) { s.init_std = -1; }), HasSubstr("model.init_std"));
  EXPECT_THAT(refusal([](ModelSpec& s) { s.init_std = NAN; }), HasSubstr("model.init_std"));
}

TEST(ModelSpec, Gpt2SmallHasItsParameters) {
  ModelSpec spec;
  spec.vocabulary = 50257;
  spec.context = 1024;
  std::uint64_t numel = 0;
  for (const UnitTensors& unit : unit_tensors(spec)) {
    for (const TensorInit& tensor : unit.tensors) numel += tensor.numel();
  }
  EXPECT_EQ(numel, 124439808u);  // as published
}

TEST(ModelSpec, InitialValuesDoNotDependOnRanges) {
  ModelSpec spec;
  spec.width = 24;
  spec.heads = 3;
  const TensorInit weight = unit_tensors(spec)[1].tensors[2];
  ASSERT_EQ(weight.name, "h.0.attn.qkv.weight");
  std::vector<float> whole(weight.numel());
  fill_initial(weight, 7, 0, weight.numel(), whole.data());
  for (const std::uint64_t piece : {1ul, 5ul, 64ul, 1000ul}) {
    std::vector<float> parts(weight.numel());
    for (std::uint64_t begin = 0; begin < weight.numel(); begin += piece) {
      fill_initial(weight, 7, begin, std::min(weight.numel(), begin + piece), parts.data() + begin);
    }
    EXPECT_EQ(whole, parts);
  }
  std::vector<float> other(weight.numel());
  fill_initial(weight, 8, 0, weight.numel(), other.data());
  EXPECT_NE(whole, other);
  EXPECT_THROW(fill_initial(weight, 7, 0, weight.numel() + 1, whole.data()), Error);
}

TEST(ModelSpec, InitialValuesFollowTheirRule) {
  ModelSpec spec;
  spec.layers = 8;
  const auto units = unit_tensors(spec);
  for (const TensorInit& tensor : units[3].tensors) {
    std::vector<float> values(tensor.numel());
    fill_initial(tensor, 1, 0, tensor.numel(), values.data());
    double sum = 0;
    double squares = 0;
    for (const float value : values) {
      sum += value;
      squares += double{value} * value;
    }
    const auto n = static_cast<double>(values.size());
    const bool projection = tensor.name.find("proj.weight") != std::string::npos;
    if (tensor.rule == InitRule::normal) {
      const double std = projection ? 0.02 / 4 : 0.02;
      EXPECT_NEAR(std::sqrt(squares / n), std, std * 0.01) << tensor.name;
      EXPECT_NEAR(sum / n, 0, std * 0.01) << tensor.name;
      EXPECT_TRUE(tensor.decay);
    } else {
      const double each =
          tensor.name.find("ln_") != std::string::npos && tensor.rule == InitRule::ones ? 1 : 0;
      EXPECT_EQ(sum, each * n) << tensor.name;
      EXPECT_FALSE(tensor.decay);
    }
  }
}

TEST(Describe, UnitsAndSizes) {
  ModelSpec spec;
  spec.layers = 2;
  const ModelShape shape = describe(spec, 4, DType::bf16, DType::f32);
  ASSERT_EQ(shape.units.size(), 4u);
  EXPECT_EQ(shape.units[0].name, "embedding");
  EXPECT_EQ(shape.units[3].name, "head");
  EXPECT_EQ(shape.units[1].output_bytes, 4u * 256 * 768 * 2);
  // qkv, attention output, middle, before GELU in bf16; a logarithm a head and row in fp32.
  EXPECT_EQ(shape.units[1].saved_bytes, 4u * 256 * (9 * 768 * 2 + 12 * 4));
  EXPECT_EQ(shape.units[3].output_bytes, 0u);
  EXPECT_EQ(shape.units[3].shared_units, std::vector<std::uint32_t>{0});
  EXPECT_EQ(shape.units[3].shared_grad_bytes, 256u * 768 * 4);
  EXPECT_FALSE(shape.units[0].backward_reads_params);
  EXPECT_EQ(shape.units[1].tensors[2].group, 0u);
  EXPECT_EQ(shape.units[1].tensors[3].group, 1u);
  // 2 * tokens * weights for products, and half of two [context, context] products a head.
  const double weights = 12.0 * 768 * 768;
  EXPECT_DOUBLE_EQ(shape.units[1].forward_flops, 2 * 1024 * weights + 2.0 * 1024 * 768 * 256);
  spec.tied_head = false;
  const ModelShape untied = describe(spec, 4, DType::bf16, DType::f32);
  EXPECT_TRUE(untied.units[3].shared_units.empty());
  EXPECT_EQ(untied.units[3].numel(), 2 * 768u + 256 * 768);
}

}  // namespace
}  // namespace terrace
