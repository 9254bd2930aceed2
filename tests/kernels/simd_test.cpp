#include "kernels/cpu/simd.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "terrace/error.h"

namespace terrace {
namespace {

TEST(Simd, NamesRoundTrip) {
  for (const SimdTarget target : {SimdTarget::scalar, SimdTarget::avx2, SimdTarget::avx512}) {
    EXPECT_EQ(parse_simd_target(simd_target_name(target)), target);
  }
  EXPECT_EQ(parse_simd_target("AVX2"), std::nullopt);
}

TEST(Simd, ScalarIsAlwaysThereAndTheBestIsTheDefault) {
  const auto targets = supported_simd_targets();
  ASSERT_FALSE(targets.empty());
  EXPECT_EQ(targets.front(), SimdTarget::scalar);
  EXPECT_TRUE(std::is_sorted(targets.begin(), targets.end()));
  EXPECT_EQ(choose_simd_target(nullptr), targets.back());
  EXPECT_EQ(choose_simd_target(""), targets.back());
  EXPECT_EQ(choose_simd_target("scalar"), SimdTarget::scalar);
}

TEST(Simd, AnUnknownNameIsRefusedInWords) {
  try {
    choose_simd_target("avx1024");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("TERRACE_SIMD is 'avx1024'"), std::string::npos) << error.what();
  }
}

TEST(Simd, WhatTheProcessorLacksIsRefused) {
  const auto targets = supported_simd_targets();
  for (const SimdTarget target : {SimdTarget::avx2, SimdTarget::avx512}) {
    if (std::find(targets.begin(), targets.end(), target) != targets.end()) {
      EXPECT_NO_THROW(set_simd_target(target));
      EXPECT_EQ(simd_target(), target);
    } else {
      EXPECT_THROW(set_simd_target(target), Error);
      EXPECT_THROW(choose_simd_target(simd_target_name(target).data()), Error);
    }
  }
  set_simd_target(targets.back());
}

}  // namespace
}  // namespace terrace
