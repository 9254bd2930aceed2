#include "tests/model/reference.h"

#include <cmath>

namespace terrace::testing {

Doubles linear(const Doubles& x, const double* w, const double* b, std::size_t rows, std::size_t in,
               std::size_t out) {
  Doubles y(rows * out);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t o = 0; o < out; ++o) {
      double sum = b != nullptr ? b[o] : 0;
      for (std::size_t i = 0; i < in; ++i) sum += x[r * in + i] * w[o * in + i];
      y[r * out + o] = sum;
    }
  }
  return y;
}

Doubles linear_backward(const Doubles& x, const double* w, const Doubles& dy, std::size_t rows,
                        std::size_t in, std::size_t out, double* dw, double* db) {
  Doubles dx(rows * in);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t o = 0; o < out; ++o) {
      const double d = dy[r * out + o];
      if (db != nullptr) db[o] += d;
      for (std::size_t i = 0; i < in; ++i) {
        dx[r * in + i] += d * w[o * in + i];
        dw[o * in + i] += d * x[r * in + i];
      }
    }
  }
  return dx;
}

namespace {

struct Moments {
  double mean = 0;
  double rstd = 0;
};
Moments moments(const double* x, std::size_t width) {
  double mean = 0;
  for (std::size_t i = 0; i < width; ++i) mean += x[i];
  mean /= static_cast<double>(width);
  double variance = 0;
  for (std::size_t i = 0; i < width; ++i) variance += (x[i] - mean) * (x[i] - mean);
  return {mean, 1 / std::sqrt(variance / static_cast<double>(width) + 1e-5)};
}

}  // namespace

Doubles layer_norm(const Doubles& x, const double* gain, const double* bias, std::size_t rows,
                   std::size_t width) {
  Doubles y(rows * width);
  for (std::size_t r = 0; r < rows; ++r) {
    const Moments m = moments(&x[r * width], width);
    for (std::size_t i = 0; i < width; ++i) {
      y[r * width + i] = (x[r * width + i] - m.mean) * m.rstd * gain[i] + bias[i];
    }
  }
  return y;
}

Doubles layer_norm_backward(const Doubles& x, const double* gain, const Doubles& dy, std::size_t rows,
                            std::size_t width, double* dgain, double* dbias) {
  Doubles dx(rows * width);
  const auto n = static_cast<double>(width);
  for (std::size_t r = 0; r < rows; ++r) {
    const double* row = &x[r * width];
    const double* d = &dy[r * width];
    const Moments m = moments(row, width);
    double sum = 0;
    double weighted = 0;
    for (std::size_t i = 0; i < width; ++i) {
      const double normal = (row[i] - m.mean) * m.rstd;
      dgain[i] += d[i] * normal;
      dbias[i] += d[i];
      sum += d[i] * gain[i];
      weighted += d[i] * gain[i] * normal;
    }
    for (std::size_t i = 0; i < width; ++i) {
      const double normal = (row[i] - m.mean) * m.rstd;
      dx[r * width + i] = m.rstd * (d[i] * gain[i] - sum / n - normal * weighted / n);
    }
  }
  return dx;
}

namespace {
const double kRoot = std::sqrt(2 / std::acos(-1.0));
}

Doubles gelu(const Doubles& x) {
  Doubles y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    y[i] = 0.5 * x[i] * (1 + std::tanh(kRoot * (x[i] + 0.044715 * x[i] * x[i] * x[i])));
  }
  return y;
}

Doubles gelu_backward(const Doubles& x, const Doubles& dy) {
  Doubles dx(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double t = std::tanh(kRoot * (x[i] + 0.044715 * x[i] * x[i] * x[i]));
    const double slope = kRoot * (1 + 3 * 0.044715 * x[i] * x[i]);
    dx[i] = dy[i] * (0.5 * (1 + t) + 0.5 * x[i] * (1 - t * t) * slope);
  }
  return dx;
}

namespace {

// Calls body(probabilities[context, context], offset of the head's first query in qkv, of its first output).
template <typename Body>
void for_each_head(const Doubles& qkv, std::size_t samples, std::size_t context, std::size_t heads,
                   std::size_t width, const Body& body) {
  const std::size_t head_width = width / heads;
  const double scale = 1 / std::sqrt(static_cast<double>(head_width));
  for (std::size_t s = 0; s < samples; ++s) {
    for (std::size_t h = 0; h < heads; ++h) {
      const std::size_t base = s * context * 3 * width + h * head_width;
      Doubles p(context * context);
      for (std::size_t i = 0; i < context; ++i) {
        double sum = 0;
        for (std::size_t j = 0; j <= i; ++j) {
          double score = 0;
          for (std::size_t c = 0; c < head_width; ++c) {
            score += qkv[base + i * 3 * width + c] * qkv[base + j * 3 * width + width + c];
          }
          p[i * context + j] = std::exp(score * scale);
          sum += p[i * context + j];
        }
        for (std::size_t j = 0; j <= i; ++j) p[i * context + j] /= sum;
      }
      body(p, base, s * context * width + h * head_width);
    }
  }
}

}  // namespace

Doubles attention(const Doubles& qkv, std::size_t samples, std::size_t context, std::size_t heads,
                  std::size_t width) {
  Doubles out(samples * context * width);
  for_each_head(qkv, samples, context, heads, width, [&](const Doubles& p, std::size_t base, std::size_t to) {
    for (std::size_t i = 0; i < context; ++i) {
      for (std::size_t j = 0; j <= i; ++j) {
        for (std::size_t c = 0; c < width / heads; ++c) {
          out[to + i * width + c] += p[i * context + j] * qkv[base + j * 3 * width + 2 * width + c];
        }
      }
    }
  });
  return out;
}

Doubles attention_backward(const Doubles& qkv, const Doubles& dout, std::size_t samples, std::size_t context,
                           std::size_t heads, std::size_t width) {
  Doubles dqkv(qkv.size());
  const std::size_t head_width = width / heads;
  const double scale = 1 / std::sqrt(static_cast<double>(head_width));
  for_each_head(qkv, samples, context, heads, width, [&](const Doubles& p, std::size_t base, std::size_t to) {
    for (std::size_t i = 0; i < context; ++i) {
      const double* d = &dout[to + i * width];
      const std::size_t q = base + i * 3 * width;
      Doubles dp(i + 1);
      double delta = 0;
      for (std::size_t j = 0; j <= i; ++j) {
        const std::size_t v = base + j * 3 * width + 2 * width;
        for (std::size_t c = 0; c < head_width; ++c) {
          dp[j] += d[c] * qkv[v + c];
          dqkv[v + c] += p[i * context + j] * d[c];
        }
        delta += p[i * context + j] * dp[j];
      }
      for (std::size_t j = 0; j <= i; ++j) {
        const double ds = p[i * context + j] * (dp[j] - delta) * scale;
        const std::size_t k = base + j * 3 * width + width;
        for (std::size_t c = 0; c < head_width; ++c) {
          dqkv[q + c] += ds * qkv[k + c];
          dqkv[k + c] += ds * qkv[q + c];
        }
      }
    }
  });
  return dqkv;
}

double cross_entropy(const Doubles& logits, const std::vector<std::int32_t>& targets, std::size_t vocabulary,
                     double divisor, Doubles* dlogits) {
  double loss = 0;
  if (dlogits != nullptr) dlogits->assign(logits.size(), 0);
  for (std::size_t r = 0; r < targets.size(); ++r) {
    if (targets[r] < 0) continue;
    const double* row = &logits[r * vocabulary];
    double top = row[0];
    for (std::size_t v = 0; v < vocabulary; ++v) top = std::max(top, row[v]);
    double sum = 0;
    for (std::size_t v = 0; v < vocabulary; ++v) sum += std::exp(row[v] - top);
    const auto target = static_cast<std::size_t>(targets[r]);
    loss += top + std::log(sum) - row[target];
    if (dlogits == nullptr) continue;
    for (std::size_t v = 0; v < vocabulary; ++v) {
      (*dlogits)[r * vocabulary + v] = (std::exp(row[v] - top) / sum - (v == target ? 1 : 0)) / divisor;
    }
  }
  return loss;
}

namespace {

Doubles plus(Doubles a, const Doubles& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

// The tensors of a block in a flat vector of parameters or gradients.
template <typename P>
struct BlockParts {
  BlockParts(const ModelSpec& spec, P* at) {
    const std::size_t d = spec.width;
    const std::size_t f = spec.mlp_columns();
    P** parts[] = {&g1, &b1, &wqkv, &bqkv, &wo, &bo, &g2, &b2, &wfc, &bfc, &wp, &bp};
    const std::size_t sizes[] = {d, d, 3 * d * d, 3 * d, d * d, d, d, d, f * d, f, d * f, d};
    for (int i = 0; i < 12; ++i) {
      *parts[i] = at;
      at += sizes[i];
    }
  }
  P *g1, *b1, *wqkv, *bqkv, *wo, *bo, *g2, *b2, *wfc, *bfc, *wp, *bp;
};

struct BlockValues {
  Doubles n1, qkv, att, middle, n2, before, after;
};

BlockValues block_values(const ModelSpec& spec, const Doubles& params, const Doubles& x,
                         std::size_t samples) {
  const BlockParts<const double> p(spec, params.data());
  const std::size_t rows = samples * spec.context;
  const std::size_t d = spec.width;
  BlockValues v;
  v.n1 = layer_norm(x, p.g1, p.b1, rows, d);
  v.qkv = linear(v.n1, p.wqkv, p.bqkv, rows, d, 3 * d);
  v.att = attention(v.qkv, samples, spec.context, spec.heads, d);
  v.middle = plus(linear(v.att, p.wo, p.bo, rows, d, d), x);
  v.n2 = layer_norm(v.middle, p.g2, p.b2, rows, d);
  v.before = linear(v.n2, p.wfc, p.bfc, rows, d, spec.mlp_columns());
  v.after = gelu(v.before);
  return v;
}

}  // namespace

Doubles block(const ModelSpec& spec, const Doubles& params, const Doubles& x, std::size_t samples) {
  const BlockParts<const double> p(spec, params.data());
  const BlockValues v = block_values(spec, params, x, samples);
  return plus(linear(v.after, p.wp, p.bp, samples * spec.context, spec.mlp_columns(), spec.width), v.middle);
}

Doubles block_backward(const ModelSpec& spec, const Doubles& params, const Doubles& x, const Doubles& dy,
                       std::size_t samples, Doubles& grads) {
  const BlockParts<const double> p(spec, params.data());
  const BlockParts<double> g(spec, grads.data());
  const BlockValues v = block_values(spec, params, x, samples);
  const std::size_t rows = samples * spec.context;
  const std::size_t d = spec.width;
  const std::size_t f = spec.mlp_columns();
  const Doubles dafter = linear_backward(v.after, p.wp, dy, rows, f, d, g.wp, g.bp);
  const Doubles dbefore = gelu_backward(v.before, dafter);
  const Doubles dn2 = linear_backward(v.n2, p.wfc, dbefore, rows, d, f, g.wfc, g.bfc);
  const Doubles dmiddle = plus(layer_norm_backward(v.middle, p.g2, dn2, rows, d, g.g2, g.b2), dy);
  const Doubles datt = linear_backward(v.att, p.wo, dmiddle, rows, d, d, g.wo, g.bo);
  const Doubles dqkv = attention_backward(v.qkv, datt, samples, spec.context, spec.heads, d);
  const Doubles dn1 = linear_backward(v.n1, p.wqkv, dqkv, rows, d, 3 * d, g.wqkv, g.bqkv);
  return plus(layer_norm_backward(x, p.g1, dn1, rows, d, g.g1, g.b1), dmiddle);
}

ReferenceResult train_reference(const ModelSpec& spec, const std::vector<Doubles>& params,
                                const std::vector<std::uint32_t>& tokens,
                                const std::vector<std::int32_t>& targets, double divisor) {
  const std::size_t rows = tokens.size();
  const std::size_t d = spec.width;
  const std::size_t table = static_cast<std::size_t>(spec.vocabulary) * d;
  const std::size_t samples = rows / spec.context;
  ReferenceResult result;
  for (const Doubles& unit : params) result.grads.emplace_back(unit.size());
  std::vector<Doubles> x(1, Doubles(rows * d));
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t i = 0; i < d; ++i) {
      x[0][r * d + i] = params[0][tokens[r] * d + i] + params[0][table + r % spec.context * d + i];
    }
  }
  for (std::size_t layer = 1; layer <= spec.layers; ++layer) {
    x.push_back(block(spec, params[layer], x.back(), samples));
  }
  const Doubles& head = params.back();
  Doubles& dhead = result.grads.back();
  const double* weight = spec.tied_head ? params[0].data() : head.data() + 2 * d;
  double* dweight = spec.tied_head ? result.grads[0].data() : dhead.data() + 2 * d;
  const Doubles normal = layer_norm(x.back(), head.data(), head.data() + d, rows, d);
  Doubles dlogits;
  result.loss_sum = cross_entropy(linear(normal, weight, nullptr, rows, d, spec.vocabulary), targets,
                                  spec.vocabulary, divisor, &dlogits);
  const Doubles dnormal =
      linear_backward(normal, weight, dlogits, rows, d, spec.vocabulary, dweight, nullptr);
  Doubles dx = layer_norm_backward(x.back(), head.data(), dnormal, rows, d, dhead.data(), dhead.data() + d);
  for (std::size_t layer = spec.layers; layer >= 1; --layer) {
    dx = block_backward(spec, params[layer], x[layer - 1], dx, samples, result.grads[layer]);
  }
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t i = 0; i < d; ++i) {
      result.grads[0][tokens[r] * d + i] += dx[r * d + i];
      result.grads[0][table + r % spec.context * d + i] += dx[r * d + i];
    }
  }
  return result;
}

}  // namespace terrace::testing
