#include "src/optimizer/chunk_update.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/simd.h"
#include "src/base/parallel_for.h"
#include "terrace/error.h"

namespace terrace {
namespace {

constexpr std::uint64_t kNumel = 3 * kUpdatePieceNumel + kBlockNumel;

struct Chunk {
  std::vector<float> streams[3];  // master, exp_avg, exp_avg_sq
  std::vector<bf16> gradient;
  std::vector<bf16> parameter;

  explicit Chunk(std::uint64_t numel, std::uint32_t seed = 1)
      : gradient(numel), parameter(numel, bf16{0x4242}) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (auto& stream : streams) {
      stream.resize(numel);
      for (float& x : stream) x = std::abs(normal(random));
    }
    for (bf16& g : gradient) g = to_bf16(normal(random));
  }
  AdamWSource source() const { return {streams[0].data(), streams[1].data(), streams[2].data()}; }
  AdamWTarget target() { return {streams[0].data(), streams[1].data(), streams[2].data()}; }
};

// Segments that start and end off every border, with padding between and after them, and an untouched one.
std::vector<ChunkSegment> odd_segments() {
  return {{.offset = 0, .numel = 5, .group = 0, .step = 3},
          {.offset = 5, .numel = 0, .group = 1, .step = 1},
          {.offset = 5, .numel = kUpdatePieceNumel - 4, .group = 1, .step = 3},
          {.offset = kUpdatePieceNumel + 40, .numel = 1000, .group = 0, .step = 1, .touched = false},
          {.offset = kUpdatePieceNumel + 1040, .numel = kUpdatePieceNumel + 7777, .group = 0, .step = 17},
          {.offset = 3 * kUpdatePieceNumel + 1, .numel = 1, .group = 1, .step = 4}};
}

std::vector<AdamWHyper> two_groups() {
  return {{.lr = 1e-2, .weight_decay = 0.1}, {.lr = 3e-3, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.0}};
}

// The same update element by element through the plain kernel of one element.
Chunk plain_update(Chunk chunk, const std::vector<ChunkSegment>& segments,
                   const std::vector<AdamWHyper>& groups, float grad_scale) {
  set_simd_target(SimdTarget::scalar);
  for (bf16& p : chunk.parameter) p = bf16{0};
  for (const ChunkSegment& segment : segments) {
    const AdamWScalars scalars = AdamWScalars::make(groups[segment.group], segment.step);
    for (std::uint64_t i = segment.offset; i < segment.offset + segment.numel; ++i) {
      if (!segment.touched) {
        chunk.parameter[i] = to_bf16(chunk.streams[0][i]);
        continue;
      }
      float* const p = &chunk.streams[0][i];
      float* const m = &chunk.streams[1][i];
      float* const v = &chunk.streams[2][i];
      adamw({p, m, v}, {p, m, v}, &chunk.gradient[i], DType::bf16, &chunk.parameter[i], DType::bf16, 1,
            grad_scale, scalars);
    }
  }
  set_simd_target(supported_simd_targets().back());
  return chunk;
}

void expect_same(const Chunk& got, const Chunk& want) {
  for (int j = 0; j < 3; ++j) {
    for (std::size_t i = 0; i < want.streams[j].size(); ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(got.streams[j][i]),
                std::bit_cast<std::uint32_t>(want.streams[j][i]))
          << "stream " << j << " element " << i;
    }
  }
  for (std::size_t i = 0; i < want.parameter.size(); ++i) {
    ASSERT_EQ(got.parameter[i].bits, want.parameter[i].bits) << "parameter " << i;
  }
}

TEST(UpdateChunk, SegmentsGroupsAndPadding) {
  const Chunk start(kNumel);
  const auto segments = odd_segments();
  const auto groups = two_groups();
  const Chunk want = plain_update(start, segments, groups, 0.5f);
  for (const int threads : {1, 2, 3}) {
    set_parallel_threads(threads);
    Chunk got = start;
    update_chunk(got.source(), got.target(), {got.gradient.data(), DType::bf16},
                 {got.parameter.data(), DType::bf16}, kNumel, segments, groups, 0.5f);
    expect_same(got, want);
  }
  set_parallel_threads(0);
}

TEST(UpdateChunk, AnotherTargetBecomesCompleteAndTheSourceStays) {
  const Chunk start(kNumel);
  const auto segments = odd_segments();
  const auto groups = two_groups();
  const Chunk want = plain_update(start, segments, groups, 1.0f);
  const Chunk source = start;
  Chunk got(kNumel, 99);
  update_chunk(source.source(), got.target(), {start.gradient.data(), DType::bf16},
               {got.parameter.data(), DType::bf16}, kNumel, segments, groups, 1.0f);
  expect_same(got, want);
  for (int j = 0; j < 3; ++j) EXPECT_EQ(source.streams[j], start.streams[j]);
}

TEST(UpdateChunk, HowAChunkIsCutChangesNothing) {
  const Chunk start(kNumel);
  const std::vector<AdamWHyper> groups{{.lr = 1e-2, .weight_decay = 0.1}};
  const std::vector<ChunkSegment> whole{{.offset = 0, .numel = kNumel, .step = 9}};
  Chunk want = start;
  update_chunk(want.source(), want.target(), {want.gradient.data(), DType::bf16},
               {want.parameter.data(), DType::bf16}, kNumel, whole, groups, 1.0f);
  Chunk got = start;
  for (std::uint64_t begin = 0; begin < kNumel; begin += kBlockNumel) {
    const std::vector<ChunkSegment> part{{.offset = 0, .numel = kBlockNumel, .step = 9}};
    float* const p = got.streams[0].data() + begin;
    float* const m = got.streams[1].data() + begin;
    float* const v = got.streams[2].data() + begin;
    update_chunk({p, m, v}, {p, m, v}, {got.gradient.data() + begin, DType::bf16},
                 {got.parameter.data() + begin, DType::bf16}, kBlockNumel, part, groups, 1.0f);
  }
  expect_same(got, want);
}

TEST(UpdateChunk, Fp32GradientAndParameter) {
  const std::uint64_t numel = 5000;
  Chunk chunk(numel);
  std::vector<float> gradient(numel);
  for (std::uint64_t i = 0; i < numel; ++i) gradient[i] = to_float(chunk.gradient[i]);
  Chunk narrow = chunk;
  std::vector<float> parameter(numel, 1.0f);
  const std::vector<ChunkSegment> segments{{.offset = 3, .numel = 4000, .step = 2},
                                           {.offset = 4003, .numel = 100, .touched = false}};
  const std::vector<AdamWHyper> groups{{}};
  update_chunk(narrow.source(), narrow.target(), {narrow.gradient.data(), DType::bf16},
               {narrow.parameter.data(), DType::bf16}, numel, segments, groups, 1.0f);
  update_chunk(chunk.source(), chunk.target(), {gradient.data(), DType::f32}, {parameter.data(), DType::f32},
               numel, segments, groups, 1.0f);
  for (std::uint64_t i = 0; i < numel; ++i) {
    ASSERT_EQ(chunk.streams[0][i], narrow.streams[0][i]);
    ASSERT_EQ(parameter[i], i >= 3 && i < 4103 ? chunk.streams[0][i] : 0.0f) << i;
  }
}

// The loss scale is in the gradient, and grad_scale takes it out; a power of two leaves no trace in the
// state.
TEST(UpdateChunk, Fp16GradientWithALossScaleAndFp16Parameter) {
  const std::uint64_t numel = 2 * kBlockNumel + 7;
  Chunk chunk(numel);
  std::vector<float> gradient(numel);
  std::vector<f16> scaled(numel), parameter(numel, f16{0x4242});
  for (std::uint64_t i = 0; i < numel; ++i) {
    scaled[i] = to_f16(to_float(chunk.gradient[i]) * 0x1p10f);
    gradient[i] = to_float(scaled[i]) * 0x1p-10f;
  }
  Chunk want = chunk;
  std::vector<float> master(numel);
  const std::vector<ChunkSegment> segments{{.offset = 3, .numel = 4000, .step = 2},
                                           {.offset = 4003, .numel = 4000, .touched = false}};
  const std::vector<AdamWHyper> groups{{.lr = 0.1, .weight_decay = 0.1}};
  update_chunk(want.source(), want.target(), {gradient.data(), DType::f32}, {master.data(), DType::f32},
               numel, segments, groups, 1.0f);
  update_chunk(chunk.source(), chunk.target(), {scaled.data(), DType::f16}, {parameter.data(), DType::f16},
               numel, segments, groups, 0x1p-10f);
  for (int stream = 0; stream < 3; ++stream) ASSERT_EQ(chunk.streams[stream], want.streams[stream]);
  for (std::uint64_t i = 0; i < numel; ++i) {
    ASSERT_EQ(parameter[i].bits, i >= 3 && i < 8003 ? to_f16(chunk.streams[0][i]).bits : 0) << i;
  }
}

TEST(FoldChunk, AnInfiniteFp16GradientIsFound) {
  std::vector<f16> gradient(kBlockNumel + 9, to_f16(2.0f));
  std::vector<double> sums(2);
  EXPECT_TRUE(chunk_stats({gradient.data(), DType::f16}, gradient.size(), sums));
  EXPECT_EQ(sums[1], 36.0);
  gradient.back() = to_f16(1e6f);
  EXPECT_FALSE(chunk_stats({gradient.data(), DType::f16}, gradient.size(), sums));
}

TEST(UpdateChunk, NothingToDo) {
  Chunk chunk(kBlockNumel);
  const Chunk start = chunk;
  update_chunk(chunk.source(), chunk.target(), {chunk.gradient.data(), DType::bf16},
               {chunk.parameter.data(), DType::bf16}, 0, {}, {}, 1.0f);
  expect_same(chunk, start);
  update_chunk(chunk.source(), chunk.target(), {chunk.gradient.data(), DType::bf16},
               {chunk.parameter.data(), DType::bf16}, kBlockNumel, {}, {}, 1.0f);
  EXPECT_EQ(chunk.streams[0], start.streams[0]);
  for (const bf16 p : chunk.parameter) EXPECT_EQ(p.bits, 0);
}

TEST(UpdateChunk, WrongSegmentsAreRefusedBeforeAnythingIsWritten) {
  Chunk chunk(kBlockNumel);
  const Chunk start = chunk;
  const auto update = [&](std::vector<ChunkSegment> segments, std::vector<AdamWHyper> groups) {
    update_chunk(chunk.source(), chunk.target(), {chunk.gradient.data(), DType::bf16},
                 {chunk.parameter.data(), DType::bf16}, kBlockNumel, segments, groups, 1.0f);
  };
  EXPECT_THROW(update({{.offset = 0, .numel = 10}, {.offset = 9, .numel = 1}}, {{}}), Error);
  EXPECT_THROW(update({{.offset = 1, .numel = kBlockNumel}}, {{}}), Error);
  EXPECT_THROW(update({{.offset = kBlockNumel + 1, .numel = 0}}, {{}}), Error);
  EXPECT_THROW(update({{.offset = 1, .numel = ~std::uint64_t{0}}}, {{}}), Error);
  EXPECT_THROW(update({{.offset = 0, .numel = 10, .group = 1}}, {{}}), Error);
  EXPECT_THROW(update({{.offset = 0, .numel = 10}, {.offset = 10, .numel = 10, .step = 0}}, {{}}), Error);
  expect_same(chunk, start);
}

TEST(FoldChunk, IsTheFoldOfTheWholeForAnyNumberOfThreads) {
  const Chunk chunk(kNumel);
  const Chunk second(kNumel, 2);
  const std::uint64_t numel = kNumel - 100;  // a short last block
  const std::size_t blocks = div_up(numel, kBlockNumel);
  std::vector<float> want(numel);
  std::vector<double> want_sums(blocks);
  fold(chunk.gradient.data(), DType::bf16, want.data(), numel, {.first = true}, nullptr);
  fold(second.gradient.data(), DType::bf16, want.data(), numel, {.last = true}, want_sums.data());
  for (const int threads : {1, 2, 3}) {
    set_parallel_threads(threads);
    std::vector<float> got(numel);
    std::vector<double> sums(blocks);
    EXPECT_TRUE(fold_chunk({chunk.gradient.data(), DType::bf16}, got.data(), numel, {.first = true}, {}));
    EXPECT_TRUE(fold_chunk({second.gradient.data(), DType::bf16}, got.data(), numel, {.last = true}, sums));
    EXPECT_EQ(got, want);
    EXPECT_EQ(sums, want_sums);
    std::vector<double> again(blocks);
    EXPECT_TRUE(chunk_stats({got.data(), DType::f32}, numel, again));
    EXPECT_EQ(again, want_sums);
  }
  set_parallel_threads(0);
}

// Element by element, as the declaration says; a sum that passes the largest 16-bit value is infinite.
TEST(SumGradients, AddsInOrderAndRoundsOnce) {
  const std::uint64_t numel = kNumel - 100;
  for (const std::uint64_t count : {1u, 2u, 5u}) {
    std::vector<bf16> gradients;
    for (std::uint64_t k = 0; k < count; ++k) {
      Chunk chunk(kNumel, 7 + static_cast<unsigned>(k));
      chunk.gradient[3] = bf16{0x8000};  // -0
      chunk.gradient[numel - 1] = bf16{0x7F7F};
      gradients.insert(gradients.end(), chunk.gradient.begin(), chunk.gradient.begin() + numel);
    }
    std::vector<bf16> want(numel);
    std::vector<float> sums(numel);
    for (std::uint64_t i = 0; i < numel; ++i) {
      std::vector<float> values(count);
      for (std::uint64_t k = 0; k < count; ++k) values[k] = to_float(gradients[k * numel + i]);
      sums[i] = values[0];
      for (std::uint64_t k = 1; k < count; ++k) sums[i] += values[k];
      want[i] = to_bf16(sums[i]);
    }
    EXPECT_EQ(want[3].bits, 0x8000);
    EXPECT_EQ(want[numel - 1].bits, count == 1 ? 0x7F7F : 0x7F80);
    for (const int threads : {1, 3}) {
      set_parallel_threads(threads);
      std::vector<bf16> got(numel), rounded(numel);
      sum_gradients({gradients.data(), DType::bf16}, count, numel, got.data());
      round_values(sums.data(), DType::bf16, numel, rounded.data());
      EXPECT_EQ(std::memcmp(got.data(), want.data(), numel * sizeof(bf16)), 0) << count;
      EXPECT_EQ(std::memcmp(rounded.data(), want.data(), numel * sizeof(bf16)), 0) << count;
    }
  }
  set_parallel_threads(0);
}

TEST(FoldChunk, ANonFiniteValueInAnyPieceIsFound) {
  Chunk chunk(kNumel);
  std::vector<float> accumulator(kNumel);
  std::vector<double> sums(kNumel / kBlockNumel);
  for (const std::uint64_t at : {std::uint64_t{0}, kUpdatePieceNumel - 1, kUpdatePieceNumel, kNumel - 1}) {
    const bf16 good = chunk.gradient[at];
    chunk.gradient[at] = bf16{0xFF80};
    EXPECT_FALSE(chunk_stats({chunk.gradient.data(), DType::bf16}, kNumel, sums));
    EXPECT_FALSE(
        fold_chunk({chunk.gradient.data(), DType::bf16}, accumulator.data(), kNumel, {true, true}, sums));
    for (std::size_t j = 0; j < sums.size(); ++j) EXPECT_EQ(std::isinf(sums[j]), j == at / kBlockNumel);
    chunk.gradient[at] = good;
  }
  EXPECT_TRUE(chunk_stats({chunk.gradient.data(), DType::bf16}, kNumel, sums));
  EXPECT_THROW(chunk_stats({chunk.gradient.data(), DType::bf16}, kNumel + 1, sums), Error);
}

}  // namespace
}  // namespace terrace
