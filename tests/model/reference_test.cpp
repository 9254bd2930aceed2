// The reference against central finite differences: it knows no other truth.
#include "tests/model/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tests/model/values.h"

namespace terrace::testing {
namespace {

// d(f)/d(x[i]) for every i, where f reads x.
Doubles differences(Doubles& x, const std::function<double()>& f) {
  Doubles out(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    const double step = 1e-5;
    x[i] = at + step;
    const double above = f();
    x[i] = at - step;
    const double below = f();
    x[i] = at;
    out[i] = (above - below) / (2 * step);
  }
  return out;
}

double dot(const Doubles& a, const Doubles& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

constexpr double kTolerance = 1e-7;

TEST(Reference, LinearGradients) {
  Doubles x = random_doubles(1, 5 * 7);
  Doubles w = random_doubles(2, 3 * 7);
  Doubles b = random_doubles(3, 3);
  const Doubles dy = random_doubles(4, 5 * 3);
  const auto f = [&] { return dot(linear(x, w.data(), b.data(), 5, 7, 3), dy); };
  Doubles dw(w.size());
  Doubles db(b.size());
  const Doubles dx = linear_backward(x, w.data(), dy, 5, 7, 3, dw.data(), db.data());
  EXPECT_LT(error(dx, differences(x, f)), kTolerance);
  EXPECT_LT(error(dw, differences(w, f)), kTolerance);
  EXPECT_LT(error(db, differences(b, f)), kTolerance);
}

TEST(Reference, LayerNormGradients) {
  Doubles x = random_doubles(1, 4 * 9);
  Doubles gain = random_doubles(2, 9);
  Doubles bias = random_doubles(3, 9);
  const Doubles dy = random_doubles(4, 4 * 9);
  const auto f = [&] { return dot(layer_norm(x, gain.data(), bias.data(), 4, 9), dy); };
  Doubles dgain(9);
  Doubles dbias(9);
  const Doubles dx = layer_norm_backward(x, gain.data(), dy, 4, 9, dgain.data(), dbias.data());
  EXPECT_LT(error(dx, differences(x, f)), kTolerance);
  EXPECT_LT(error(dgain, differences(gain, f)), kTolerance);
  EXPECT_LT(error(dbias, differences(bias, f)), kTolerance);
}

TEST(Reference, GeluGradient) {
  Doubles x = random_doubles(1, 50, 2.0);
  const Doubles dy = random_doubles(2, 50);
  const auto f = [&] { return dot(gelu(x), dy); };
  EXPECT_LT(error(gelu_backward(x, dy), differences(x, f)), kTolerance);
}

TEST(Reference, AttentionGradient) {
  Doubles qkv = random_doubles(1, 2 * 5 * 3 * 6);
  const Doubles dout = random_doubles(2, 2 * 5 * 6);
  const auto f = [&] { return dot(attention(qkv, 2, 5, 3, 6), dout); };
  EXPECT_LT(error(attention_backward(qkv, dout, 2, 5, 3, 6), differences(qkv, f)), kTolerance);
}

TEST(Reference, CrossEntropyGradient) {
  Doubles logits = random_doubles(1, 6 * 11, 3.0);
  const std::vector<std::int32_t> targets{3, -1, 0, 10, 5, -1};
  const auto f = [&] { return cross_entropy(logits, targets, 11, 4, nullptr) / 4; };
  Doubles dlogits;
  cross_entropy(logits, targets, 11, 4, &dlogits);
  EXPECT_LT(error(dlogits, differences(logits, f)), kTolerance);
}

ModelSpec tiny(bool tied) {
  ModelSpec spec;
  spec.layers = 2;
  spec.width = 6;
  spec.heads = 3;
  spec.mlp_width = 10;
  spec.vocabulary = 11;
  spec.context = 4;
  spec.tied_head = tied;
  return spec;
}

TEST(Reference, BlockGradients) {
  const ModelSpec spec = tiny(true);
  Doubles params = random_params(spec, 1)[1];
  Doubles x = random_doubles(2, 2 * 4 * 6);
  const Doubles dy = random_doubles(3, x.size());
  const auto f = [&] { return dot(block(spec, params, x, 2), dy); };
  Doubles grads(params.size());
  EXPECT_LT(error(block_backward(spec, params, x, dy, 2, grads), differences(x, f)), kTolerance);
  EXPECT_LT(error(grads, differences(params, f)), kTolerance);
}

TEST(Reference, WholeModelGradients) {
  for (const bool tied : {true, false}) {
    const ModelSpec spec = tiny(tied);
    std::vector<Doubles> params = random_params(spec, 5);
    const std::vector<std::uint32_t> tokens{1, 5, 1, 10, 0, 0, 3, 1};
    const std::vector<std::int32_t> targets{5, 1, 10, -1, 0, 3, 1, 2};
    const auto f = [&] { return train_reference(spec, params, tokens, targets, 7).loss_sum / 7; };
    const ReferenceResult result = train_reference(spec, params, tokens, targets, 7);
    for (std::size_t u = 0; u < params.size(); ++u) {
      EXPECT_LT(error(result.grads[u], differences(params[u], f)), kTolerance)
          << "unit " << u << " tied " << tied;
    }
  }
}

}  // namespace
}  // namespace terrace::testing
