// How tensors are laid out as units, and the conversions of their elements.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "src/embed/element_cast.h"
#include "src/embed/tensor_table.h"

namespace terrace {
namespace {

std::vector<OptimizerTensor> tensors_of(const std::vector<std::uint64_t>& sizes) {
  static float memory = 0;
  std::vector<OptimizerTensor> tensors;
  for (const std::uint64_t numel : sizes)
    tensors.push_back({"t" + std::to_string(tensors.size()), numel, &memory});
  return tensors;
}

TEST(TensorTableTest, UnitsHoldEveryElementOnceWithinTheirBounds) {
  const std::vector<std::uint64_t> sizes{1, 99, 100, 101, 1, 1, 1, 1, 350, 50, 200, 100, 7};
  const UnitBounds bounds{100, 3};
  const TensorTable table(tensors_of(sizes), bounds);
  std::vector<std::uint64_t> seen(sizes.size());
  std::uint32_t tensor = 0;
  for (std::uint32_t u = 0; u < table.units().size(); ++u) {
    std::uint64_t used = 0;
    EXPECT_LE(table.units()[u].size(), bounds.tensors);
    ASSERT_FALSE(table.units()[u].empty());
    for (const TensorPart& part : table.units()[u]) {
      EXPECT_EQ(part.offset, used);
      EXPECT_GE(part.tensor, tensor);  // in order of registration
      tensor = part.tensor;
      EXPECT_EQ(part.begin, seen[part.tensor]);
      EXPECT_GT(part.numel, 0u);
      seen[part.tensor] += part.numel;
      used += part.numel;
      EXPECT_GE(table.last_unit(part.tensor), u);
    }
    EXPECT_LE(used, bounds.numel);
  }
  EXPECT_EQ(seen, sizes);
  EXPECT_EQ(table.last_unit(8), table.last_unit(9));  // the rest of a large one takes the next ones in
  EXPECT_EQ(table.last_unit(0), 0u);
  const ModelShape shape = table.shape(DType::f32);
  ASSERT_EQ(shape.units.size(), table.units().size() + 1);
  EXPECT_EQ(shape.units.back().numel(), 0u);
  EXPECT_EQ(table.index_of("t12"), 12u);
}

TEST(TensorTableTest, TypesWideEnoughForAll) {
  auto tensors = tensors_of({3, 4});
  for (OptimizerTensor& tensor : tensors) tensor.parameter_type = tensor.gradient_type = ElementType::bf16;
  EXPECT_EQ(TensorTable(tensors).parameter_dtype(), DType::bf16);
  EXPECT_EQ(TensorTable(tensors).gradient_dtype(), DType::bf16);
  tensors[1].gradient_type = ElementType::fp16;
  EXPECT_EQ(TensorTable(tensors).gradient_dtype(), DType::f32);
  tensors[0].parameter_type = ElementType::fp32;
  EXPECT_EQ(TensorTable(tensors).parameter_dtype(), DType::f32);
}

TEST(ElementCastTest, EveryHalfIsExact) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    _Float16 value = 0;
    std::memcpy(&value, &half, sizeof(half));
    const auto wanted = static_cast<float>(value);
    const float got = half_to_float(half);
    if (std::isnan(wanted)) {
      EXPECT_TRUE(std::isnan(got)) << bits;
    } else {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(got), std::bit_cast<std::uint32_t>(wanted)) << bits;
    }
  }
}

TEST(ElementCastTest, GradientsOfAnyTypeAndLength) {
  for (const std::size_t numel : {1u, 3u, 1023u, 1024u, 1025u, 5000u}) {
    std::vector<std::uint16_t> halves(numel + 1, 0x7777);
    for (std::size_t i = 0; i < numel; ++i) halves[i] = static_cast<std::uint16_t>(i * 37 % 0x7C00);
    const auto* from = reinterpret_cast<const std::byte*>(halves.data());
    std::vector<float> floats(numel + 1, 9.0f);
    std::vector<bf16> shorts(numel + 1, to_bf16(9.0f));
    cast_gradient(from, DType::f16, reinterpret_cast<std::byte*>(floats.data()), DType::f32, numel);
    cast_gradient(from, DType::f16, reinterpret_cast<std::byte*>(shorts.data()), DType::bf16, numel);
    for (std::size_t i = 0; i < numel; ++i) {
      EXPECT_EQ(floats[i], half_to_float(halves[i]));
      EXPECT_EQ(shorts[i], to_bf16(half_to_float(halves[i])));
    }
    EXPECT_EQ(floats[numel], 9.0f);
    EXPECT_EQ(shorts[numel], to_bf16(9.0f));
  }
}

// fl32(s + absent) is s for every s, -0 too; +0 would make +0 of it.
TEST(ElementCastTest, WhatIsAbsentLeavesEverySumAsItIs) {
  float absent = 1;
  fill_absent(reinterpret_cast<std::byte*>(&absent), DType::f32, 1);
  bf16 short_absent = to_bf16(1);
  fill_absent(reinterpret_cast<std::byte*>(&short_absent), DType::bf16, 1);
  for (const float sum : {0.0f, -0.0f, 1.5f, -3e-45f}) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(sum + absent), std::bit_cast<std::uint32_t>(sum));
    EXPECT_EQ(std::bit_cast<std::uint32_t>(absent + sum), std::bit_cast<std::uint32_t>(sum));
    EXPECT_EQ(std::bit_cast<std::uint32_t>(sum + to_float(short_absent)), std::bit_cast<std::uint32_t>(sum));
  }
}

}  // namespace
}  // namespace terrace
