#include "kernels/cpu/adamw.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/adamw.cpp"
#include "kernels/cpu/simd_targets.h"
// After simd_targets.h:
#include <hwy/foreach_target.h>

#include "kernels/cpu/lanes-inl.h"
#include "src/base/fail.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::HWY_NAMESPACE {

// Sixteen elements, in place.
HWY_INLINE void adamw_lanes(F32& master, F32& exp_avg, F32& exp_avg_sq, F32 gradient, float grad_scale,
                            const AdamWScalars& s) {
  const F32 g = gradient * set(grad_scale);
  const F32 kept = fma(set(-s.beta1_complement), exp_avg, exp_avg);
  const F32 m = fma(set(s.beta1_complement), g, kept);
  const F32 sum = fma(set(s.beta2_complement), fma(g, g, negate(exp_avg_sq)), exp_avg_sq);
  const F32 v = min(set(3.40282346638528859811704183484516925e+38f), sum);  // in this order a NaN passes
  const F32 u = m / fma(sqrt(v), set(s.root_correction), set(s.eps));
  master = master - fma(set(s.step_size), u, set(s.decay) * master);
  exp_avg = m;
  exp_avg_sq = v;
}

template <typename G, typename P>
void adamw_loop(const AdamWSource& source, const AdamWTarget& target, const G* gradient, P* parameter,
                std::size_t numel, float grad_scale, const AdamWScalars& scalars) {
  const AdamWSource in = source;
  const AdamWTarget out = target;
  const AdamWScalars s = scalars;
  std::size_t i = 0;
  for (; i + kLanes <= numel; i += kLanes) {
    F32 p = load(in.master + i);
    F32 m = load(in.exp_avg + i);
    F32 v = load(in.exp_avg_sq + i);
    adamw_lanes(p, m, v, load(gradient + i), grad_scale, s);
    store(out.master + i, p);
    store(out.exp_avg + i, m);
    store(out.exp_avg_sq + i, v);
    store(parameter + i, p);
  }
  if (const std::size_t n = numel - i; n > 0) {
    F32 p = load_n(in.master + i, n);
    F32 m = load_n(in.exp_avg + i, n);
    F32 v = load_n(in.exp_avg_sq + i, n);
    adamw_lanes(p, m, v, load_n(gradient + i, n), grad_scale, s);
    store_n(out.master + i, p, n);
    store_n(out.exp_avg + i, m, n);
    store_n(out.exp_avg_sq + i, v, n);
    store_n(parameter + i, p, n);
  }
}

}  // namespace terrace::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>

namespace terrace {
namespace {

// beta^step by squaring: plain products, so that no library shows in the bits.
double power(double base, std::uint64_t exponent) {
  double result = 1.0;
  for (; exponent != 0; exponent >>= 1) {
    if (exponent & 1) result *= base;
    base *= base;
  }
  return result;
}

template <typename G, typename P>
void run(const AdamWSource& source, const AdamWTarget& target, const void* gradient, void* parameter,
         std::size_t numel, float grad_scale, const AdamWScalars& scalars) {
  TERRACE_DISPATCH(adamw_loop<G, P>)
  (source, target, static_cast<const G*>(gradient), static_cast<P*>(parameter), numel, grad_scale, scalars);
}

using Run = void (*)(const AdamWSource&, const AdamWTarget&, const void*, void*, std::size_t, float,
                     const AdamWScalars&);

template <typename G>
Run for_gradient(DType parameter_dtype) {
  return parameter_dtype == DType::bf16  ? run<G, bf16>
         : parameter_dtype == DType::f16 ? run<G, f16>
                                         : run<G, float>;
}

}  // namespace

AdamWScalars AdamWScalars::make(const AdamWHyper& hyper, std::uint64_t step) {
  const auto require = [](bool ok, const char* name, double value, const char* wanted) {
    if (!ok) fail(ErrorCode::invalid_argument, "AdamW: {} is {}; wanted {}", name, value, wanted);
  };
  require(hyper.lr >= 0 && std::isfinite(hyper.lr), "lr", hyper.lr, "a finite number >= 0");
  require(hyper.beta1 >= 0 && hyper.beta1 < 1, "beta1", hyper.beta1, "0 <= beta1 < 1");
  require(hyper.beta2 >= 0 && hyper.beta2 < 1, "beta2", hyper.beta2, "0 <= beta2 < 1");
  require(static_cast<float>(hyper.eps) > 0 && std::isfinite(hyper.eps), "eps", hyper.eps,
          "a finite number > 0 in fp32");
  require(hyper.weight_decay >= 0 && std::isfinite(hyper.weight_decay), "weight_decay", hyper.weight_decay,
          "a finite number >= 0");
  require(step >= 1, "step", static_cast<double>(step), "a count from 1");
  AdamWScalars scalars;
  scalars.beta1_complement = static_cast<float>(1.0 - hyper.beta1);
  scalars.beta2_complement = static_cast<float>(1.0 - hyper.beta2);
  scalars.decay = static_cast<float>(hyper.lr * hyper.weight_decay);
  scalars.step_size = static_cast<float>(hyper.lr / (1.0 - power(hyper.beta1, step)));
  scalars.root_correction = static_cast<float>(1.0 / std::sqrt(1.0 - power(hyper.beta2, step)));
  scalars.eps = static_cast<float>(hyper.eps);
  return scalars;
}

void adamw(const AdamWSource& source, const AdamWTarget& target, const void* gradient, DType gradient_dtype,
           void* parameter, DType parameter_dtype, std::size_t numel, float grad_scale,
           const AdamWScalars& scalars) {
  const auto body = gradient_dtype == DType::bf16  ? for_gradient<bf16>(parameter_dtype)
                    : gradient_dtype == DType::f16 ? for_gradient<f16>(parameter_dtype)
                                                   : for_gradient<float>(parameter_dtype);
  body(source, target, gradient, parameter, numel, grad_scale, scalars);
}

}  // namespace terrace
#endif
