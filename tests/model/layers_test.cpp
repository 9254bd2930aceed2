// Each layer, forward and backward, against the reference in double precision, both starting from the same
// rounded inputs. Distances are relative, over a whole tensor.
#include <gtest/gtest.h>

#include <algorithm>

#include "src/model/attention.h"
#include "src/model/block.h"
#include "src/model/embedding_unit.h"
#include "src/model/head_unit.h"
#include "tests/model/values.h"

namespace terrace::testing {
namespace {

// fp32: rounding of sums. bf16: a few roundings of intermediate values to 8 bits, 2^-9 each; fp16: to 11
// bits, 2^-12 each, where values are not so small that they are subnormal.
constexpr double tolerance_of(DType dtype) {
  return by_dtype(dtype, 2e-5, 1.5e-2, 1.5e-3);
}
template <typename T>
constexpr double kTolerance = tolerance_of(dtype_of<T>());
constexpr DType kGradTypes[] = {DType::f32, DType::bf16, DType::f16};

ModelSpec make_spec(std::uint32_t width, std::uint32_t heads, std::uint32_t vocabulary,
                    std::uint32_t context) {
  ModelSpec spec;
  spec.layers = 1;
  spec.width = width;
  spec.heads = heads;
  spec.vocabulary = vocabulary;
  spec.context = context;
  return spec;
}

template <typename T>
struct Setting {
  Setting(const ModelSpec& from, std::uint32_t samples, DType grad_dtype = DType::f32)
      : spec(from),
        sizes(from, samples, dtype_of<T>(), grad_dtype),
        workers(worker_needs(sizes)),
        context{sizes, workers, sizes.max_rows} {}
  ModelSpec spec;
  ModelSizes sizes;
  WorkerPool workers;
  LayerContext context;
};

std::vector<std::byte> poison(std::size_t bytes) {
  return std::vector<std::byte>(bytes, std::byte{0xFF});
}

struct Gradients {
  Gradients(std::size_t numel, DType from) : dtype(from), bytes(poison(numel * dtype_bytes(from))) {}
  ParameterGradient view() { return {bytes.data(), dtype}; }
  Doubles values() const {
    if (dtype == DType::f32) return widened(reinterpret_cast<const float*>(bytes.data()), bytes.size() / 4);
    if (dtype == DType::f16) return widened(reinterpret_cast<const f16*>(bytes.data()), bytes.size() / 2);
    return widened(reinterpret_cast<const bf16*>(bytes.data()), bytes.size() / 2);
  }
  DType dtype;
  std::vector<std::byte> bytes;
};

template <typename T>
class Layers : public ::testing::Test {};
using Types = ::testing::Types<float, bf16, f16>;
TYPED_TEST_SUITE(Layers, Types);

template <typename T>
void check_attention(std::uint32_t width, std::uint32_t heads, std::uint32_t length, std::uint32_t samples) {
  Setting<T> s(make_spec(width, heads, 10, length), samples);
  const std::size_t rows = samples * length;
  Doubles qkv = random_doubles(1, rows * 3 * width);
  Doubles dout = random_doubles(2, rows * width);
  const auto qkv_in = rounded<T>(qkv);
  const auto dout_in = rounded<T>(dout);
  std::vector<T> out(rows * width);
  std::vector<T> dqkv(qkv.size());
  std::vector<float> lse(samples * heads * length, NAN);
  attention_forward(s.context, qkv_in.data(), out.data(), lse.data());
  attention_backward(s.context, qkv_in.data(), out.data(), lse.data(), dout_in.data(), dqkv.data());
  EXPECT_LT(error(widened(out), attention(qkv, samples, length, heads, width)), kTolerance<T>);
  EXPECT_LT(error(widened(dqkv), attention_backward(qkv, dout, samples, length, heads, width)),
            kTolerance<T>);
}

TYPED_TEST(Layers, Attention) {
  check_attention<TypeParam>(24, 3, 7, 2);
  check_attention<TypeParam>(4, 4, 1, 3);
  for (const std::uint32_t length : {kQueryRows - 1, kQueryRows, kQueryRows + 1, 2 * kQueryRows + 5}) {
    check_attention<TypeParam>(10, 2, length, 1);
  }
}

template <typename T>
void check_block(const ModelSpec& spec, std::uint32_t samples, DType grad_dtype) {
  Setting<T> s(spec, samples, grad_dtype);
  Doubles params = random_params(spec, 3)[1];
  Doubles x = random_doubles(1, s.sizes.max_rows * spec.width);
  Doubles dy = random_doubles(2, x.size());
  const auto params_in = rounded<T>(params);
  const auto x_in = rounded<T>(x);
  const auto dy_in = rounded<T>(dy);
  ASSERT_EQ(static_cast<std::size_t>(BlockTensors(s.sizes).numel), params.size());
  std::vector<T> out(x.size());
  std::vector<T> dx(x.size());
  Gradients grads(params.size(), grad_dtype);
  auto saved = poison(BlockSaved(s.sizes).bytes);
  auto again = poison(saved.size());
  auto forward_work = poison(BlockForwardWorkspace(s.sizes).bytes);
  auto backward_work = poison(BlockBackwardWorkspace(s.sizes).bytes);
  block_forward(s.context, params_in.data(), x_in.data(), out.data(), saved.data(), forward_work.data());
  block_forward(s.context, params_in.data(), x_in.data(), static_cast<T*>(nullptr), again.data(),
                forward_work.data());
  EXPECT_TRUE(same_bits(saved, again)) << "recomputation";
  block_backward(s.context, params_in.data(), x_in.data(), saved.data(), dy_in.data(), dx.data(),
                 grads.view(), backward_work.data());
  Doubles want_grads(params.size());
  const Doubles want_dx = block_backward(spec, params, x, dy, samples, want_grads);
  EXPECT_LT(error(widened(out), block(spec, params, x, samples)), kTolerance<T>);
  EXPECT_LT(error(widened(dx), want_dx), kTolerance<T>);
  const double tolerance = std::max(kTolerance<T>, tolerance_of(grad_dtype));
  std::size_t at = 0;
  const Doubles got = grads.values();
  const auto units = unit_tensors(spec);
  for (const TensorInit& tensor : units[1].tensors) {
    const Doubles a(&got[at], &got[at] + tensor.numel());
    const Doubles b(&want_grads[at], &want_grads[at] + tensor.numel());
    EXPECT_LT(error(a, b), tolerance) << tensor.name;
    at += tensor.numel();
  }
}

TYPED_TEST(Layers, Block) {
  for (const DType grad : kGradTypes) {
    check_block<TypeParam>(make_spec(24, 3, 10, 7), 2, grad);
    check_block<TypeParam>(make_spec(1, 1, 10, 1), 1, grad);
    check_block<TypeParam>(make_spec(70, 7, 10, 100), 3, grad);
  }
  ModelSpec wide = make_spec(16, 2, 10, 9);
  wide.mlp_width = 400;
  check_block<TypeParam>(wide, 1, DType::f32);
  wide.mlp_width = 5;
  check_block<TypeParam>(wide, 1, DType::f32);
}

template <typename T>
void check_head(const ModelSpec& spec, std::uint32_t samples, DType grad_dtype) {
  Setting<T> s(spec, samples, grad_dtype);
  const std::size_t rows = s.sizes.max_rows;
  const std::size_t d = spec.width;
  const std::size_t table = spec.vocabulary * d;
  std::vector<Doubles> all = random_params(spec, 3);
  Doubles params = all.back();
  const auto tied_in = rounded<T>(all[0]);
  const auto params_in = rounded<T>(params);
  Doubles x = random_doubles(1, rows * d);
  const auto x_in = rounded<T>(x);
  std::vector<std::int32_t> targets(rows);
  for (std::size_t i = 0; i < rows; ++i) {
    targets[i] = static_cast<std::int32_t>(random_bits(9, 1, i, 0) % (spec.vocabulary + 1)) - 1;
  }
  const double divisor = 123;
  std::vector<T> dx(x.size());
  Gradients grads(params.size(), grad_dtype);
  std::vector<float> shared(spec.tied_head ? table : 0, NAN);
  auto work = poison(HeadWorkspace(s.sizes, true).bytes);
  const T* tied = spec.tied_head ? tied_in.data() : nullptr;
  const double loss =
      head_backward(s.context, params_in.data(), tied, targets, 1 / divisor, x_in.data(), dx.data(),
                    grads.view(), spec.tied_head ? shared.data() : nullptr, work.data());
  auto eval_work = poison(HeadWorkspace(s.sizes, false).bytes);
  EXPECT_EQ(loss, head_forward(s.context, params_in.data(), tied, targets, x_in.data(), eval_work.data()));

  const double* weight = spec.tied_head ? all[0].data() : params.data() + 2 * d;
  const Doubles normal = layer_norm(x, params.data(), params.data() + d, rows, d);
  Doubles dlogits;
  const Doubles logits = linear(normal, weight, nullptr, rows, d, spec.vocabulary);
  const double want_loss = cross_entropy(logits, targets, spec.vocabulary, divisor, &dlogits);
  Doubles dweight(table);
  Doubles dgain(d);
  Doubles dbias(d);
  const Doubles dnormal =
      linear_backward(normal, weight, dlogits, rows, d, spec.vocabulary, dweight.data(), nullptr);
  const Doubles want_dx = layer_norm_backward(x, params.data(), dnormal, rows, d, dgain.data(), dbias.data());
  EXPECT_NEAR(loss, want_loss, by_dtype(dtype_of<T>(), 1e-6, 2e-3, 1e-4) * std::abs(want_loss));
  EXPECT_LT(error(widened(dx), want_dx), kTolerance<T>);
  const Doubles got = grads.values();
  const double tolerance = std::max(kTolerance<T>, tolerance_of(grad_dtype));
  EXPECT_LT(error(Doubles(&got[0], &got[0] + d), dgain), tolerance);
  EXPECT_LT(error(Doubles(&got[d], &got[d] + d), dbias), tolerance);
  const Doubles got_weight = spec.tied_head ? widened(shared) : Doubles(&got[2 * d], &got[2 * d] + table);
  EXPECT_LT(error(got_weight, dweight), spec.tied_head ? kTolerance<T> : tolerance);
}

TYPED_TEST(Layers, Head) {
  for (const DType grad : kGradTypes) {
    for (const bool tied : {false, true}) {
      ModelSpec spec = make_spec(24, 3, 39, 7);
      spec.tied_head = tied;
      check_head<TypeParam>(spec, 2, grad);
      spec.vocabulary = 385;  // two column tiles
      check_head<TypeParam>(spec, 2, grad);
      spec = make_spec(8, 1, 20, kHeadRows / 2 + 1);  // two row passes
      spec.tied_head = tied;
      check_head<TypeParam>(spec, 2, grad);
    }
  }
}

TEST(Head, NoTargetsGiveZeros) {
  ModelSpec spec = make_spec(8, 1, 20, 3);
  spec.tied_head = false;
  Setting<bf16> s(spec, 1);
  Doubles params = random_params(spec, 3).back();
  Doubles x = random_doubles(1, 3 * 8);
  const auto params_in = rounded<bf16>(params);
  const auto x_in = rounded<bf16>(x);
  std::vector<bf16> dx(x.size());
  Gradients grads(params.size(), DType::f32);
  auto work = poison(HeadWorkspace(s.sizes, true).bytes);
  const std::vector<std::int32_t> targets(3, kIgnoreTarget);
  EXPECT_EQ(0, head_backward<bf16>(s.context, params_in.data(), nullptr, targets, 0.2, x_in.data(), dx.data(),
                                   grads.view(), nullptr, work.data()));
  EXPECT_EQ(0, error(grads.values(), Doubles(params.size())));
  EXPECT_EQ(0, error(widened(dx), Doubles(x.size())));
}

template <typename T>
void check_embedding(bool tied, DType grad_dtype) {
  const ModelSpec spec = make_spec(24, 3, 139, 7);
  Setting<T> s(spec, 3, grad_dtype);
  const std::size_t d = spec.width;
  const std::size_t table = spec.vocabulary * d;
  Doubles params = random_params(spec, 3)[0];
  Doubles dout = random_doubles(1, s.sizes.max_rows * d);
  const auto params_in = rounded<T>(params);
  const auto dout_in = rounded<T>(dout);
  const Doubles shared = random_doubles(4, table);
  std::vector<float> shared_in(shared.begin(), shared.end());
  const std::vector<std::uint32_t> tokens{0, 0, 5, 138, 7, 0, 2, 5, 5, 5, 5, 5, 5, 5, 1, 2, 3, 4, 5, 6, 138};
  std::vector<T> out(dout.size());
  embedding_forward(s.context, params_in.data(), tokens, out.data());
  Gradients grads(params.size(), grad_dtype);
  auto work = poison(EmbeddingBackwardWorkspace(s.sizes).bytes);
  embedding_backward(s.context, tokens, dout_in.data(), tied ? shared_in.data() : nullptr, grads.view(),
                     work.data());
  Doubles want(dout.size());
  Doubles want_grads(params.size());
  for (std::size_t v = 0; tied && v < table; ++v) want_grads[v] = shared_in[v];
  for (std::size_t r = 0; r < tokens.size(); ++r) {
    for (std::size_t i = 0; i < d; ++i) {
      const std::size_t position = table + r % spec.context * d + i;
      want[r * d + i] = params[tokens[r] * d + i] + params[position];
      want_grads[tokens[r] * d + i] += dout[r * d + i];
      want_grads[position] += dout[r * d + i];
    }
  }
  EXPECT_LT(error(widened(out), want), by_dtype(dtype_of<T>(), 0x1p-23, 0x1p-8, 0x1p-11));
  EXPECT_LT(error(grads.values(), want_grads), by_dtype(grad_dtype, 0x1p-22, 0x1p-8, 0x1p-11));
}

TYPED_TEST(Layers, Embedding) {
  for (const bool tied : {false, true}) {
    for (const DType grad : kGradTypes) check_embedding<TypeParam>(tied, grad);
  }
}

}  // namespace
}  // namespace terrace::testing
