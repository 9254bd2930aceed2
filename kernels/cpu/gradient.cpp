#include "kernels/cpu/gradient.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gradient.cpp"
#include "kernels/cpu/simd_targets.h"
// After simd_targets.h:
#include <hwy/foreach_target.h>

#include "kernels/cpu/lanes-inl.h"
#include "src/base/fail.h"
#include "src/base/units.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::HWY_NAMESPACE {

// One bundle of the fold; T is the gradient's type.
template <typename T, bool kFirst, bool kLast>
HWY_INLINE F32 fold_lanes(F32 gradient, F32 accumulator) {
  const F32 sum = kFirst ? gradient : accumulator + gradient;
  return kLast && !kFirst ? round_to<T>(sum) : sum;
}

template <typename T, bool kFirst>
void fold_loop(const T* gradient, float* accumulator, std::size_t numel) {
  std::size_t i = 0;
  for (; i + kLanes <= numel; i += kLanes) {
    store(accumulator + i,
          fold_lanes<T, kFirst, false>(load(gradient + i), kFirst ? set(0.0f) : load(accumulator + i)));
  }
  if (const std::size_t n = numel - i; n > 0) {
    const F32 old = kFirst ? set(0.0f) : load_n(accumulator + i, n);
    store_n(accumulator + i, fold_lanes<T, kFirst, false>(load_n(gradient + i, n), old), n);
  }
}

// The square of a float is exact in double, so the multiply-add rounds as the sum alone would. A block's sum
// cannot overflow: it is finite exactly when every element is.
HWY_INLINE bool finish_block(F64 squares, double* block_sum) {
  const double sum = sum_lanes(squares);
  const bool finite = sum <= 1.7976931348623157e308;
  *block_sum = finite ? sum : HUGE_VAL;
  return finite;
}

template <typename T, bool kFirst>
bool fold_last_loop(const T* gradient, float* accumulator, std::size_t numel, double* block_sums) {
  bool finite = true;
  for (std::size_t begin = 0; begin < numel; begin += kBlockNumel) {
    const std::size_t end = numel - begin < kBlockNumel ? numel : begin + kBlockNumel;
    F64 squares = set64(0.0);
    std::size_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      const F32 sum =
          fold_lanes<T, kFirst, true>(load(gradient + i), kFirst ? set(0.0f) : load(accumulator + i));
      store(accumulator + i, sum);
      const F64 wide = promote(sum);
      squares = fma(wide, wide, squares);
    }
    if (const std::size_t n = end - i; n > 0) {
      const F32 old = kFirst ? set(0.0f) : load_n(accumulator + i, n);
      const F32 sum = fold_lanes<T, kFirst, true>(load_n(gradient + i, n), old);
      store_n(accumulator + i, sum, n);
      const F64 wide = promote(sum);
      squares = fma(wide, wide, squares);
    }
    finite = finish_block(squares, block_sums + begin / kBlockNumel) && finite;
  }
  return finite;
}

template <typename T>
bool stats_loop(const T* gradient, std::size_t numel, double* block_sums) {
  bool finite = true;
  for (std::size_t begin = 0; begin < numel; begin += kBlockNumel) {
    const std::size_t end = numel - begin < kBlockNumel ? numel : begin + kBlockNumel;
    F64 squares = set64(0.0);
    for (std::size_t i = begin; i < end; i += kLanes) {
      const F64 wide = promote(load_n(gradient + i, end - i));
      squares = fma(wide, wide, squares);
    }
    finite = finish_block(squares, block_sums + begin / kBlockNumel) && finite;
  }
  return finite;
}

}  // namespace terrace::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {
namespace {

template <typename T>
bool fold_typed(const T* gradient, float* accumulator, std::size_t numel, FoldPosition position,
                double* block_sums) {
  if (position.first && position.last) {
    return TERRACE_DISPATCH(fold_last_loop<T, true>)(gradient, accumulator, numel, block_sums);
  }
  if (position.last) {
    return TERRACE_DISPATCH(fold_last_loop<T, false>)(gradient, accumulator, numel, block_sums);
  }
  if (position.first) {
    TERRACE_DISPATCH(fold_loop<T, true>)(gradient, accumulator, numel);
  } else {
    TERRACE_DISPATCH(fold_loop<T, false>)(gradient, accumulator, numel);
  }
  return true;
}

}  // namespace

bool fold(const void* gradient, DType dtype, float* accumulator, std::size_t numel, FoldPosition position,
          double* block_sums) {
  switch (dtype) {
    case DType::bf16:
      return fold_typed(static_cast<const bf16*>(gradient), accumulator, numel, position, block_sums);
    case DType::f32:
      return fold_typed(static_cast<const float*>(gradient), accumulator, numel, position, block_sums);
    case DType::f16:
      return fold_typed(static_cast<const f16*>(gradient), accumulator, numel, position, block_sums);
  }
  fail(ErrorCode::internal, "fold of a gradient of no known type");
}

bool gradient_stats(const void* gradient, DType dtype, std::size_t numel, double* block_sums) {
  switch (dtype) {
    case DType::bf16:
      return TERRACE_DISPATCH(stats_loop<bf16>)(static_cast<const bf16*>(gradient), numel, block_sums);
    case DType::f32:
      return TERRACE_DISPATCH(stats_loop<float>)(static_cast<const float*>(gradient), numel, block_sums);
    case DType::f16:
      return TERRACE_DISPATCH(stats_loop<f16>)(static_cast<const f16*>(gradient), numel, block_sums);
  }
  fail(ErrorCode::internal, "sums of a gradient of no known type");
}

}  // namespace terrace
#endif
