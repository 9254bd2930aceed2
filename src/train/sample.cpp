// Text from the model at the store's last commit, one token at a time.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "src/base/fail.h"
#include "src/base/random.h"
#include "src/data/tokenizer.h"
#include "src/train/session.h"
#include "terrace/train.h"

namespace terrace {
namespace {

// Softmax at `temperature` over the top_k largest, by the uniform value u in [0, 1).
std::uint32_t choose(const std::vector<float>& logits, const SampleOptions& options, double u) {
  std::vector<std::uint32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return logits[a] > logits[b]; });
  if (options.temperature <= 0) return order[0];
  if (options.top_k > 0 && options.top_k < order.size()) order.resize(options.top_k);
  std::vector<double> weights;
  double total = 0;
  for (const std::uint32_t token : order) {
    weights.push_back(std::exp((logits[token] - logits[order[0]]) / options.temperature));
    total += weights.back();
  }
  double left = u * total;
  for (std::size_t i = 0; i < order.size(); ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  return order.back();
}

// What text begins after, where there is no prompt: a newline, if the data has one.
std::uint32_t first_token(const Tokenizer& tokenizer) {
  const bool newline = tokenizer.is_bytes() || std::ranges::binary_search(tokenizer.alphabet(), U'\n');
  return newline ? tokenizer.encode("\n").front() : 0;
}

}  // namespace

std::string sample_text(const Config& config, const SampleOptions& options) {
  Config one = config;
  one.train.micro_batch = 1;
  one.train.micro_batches = 1;
  const Tokenizer tokenizer = config.data.path.empty() ? Tokenizer() : Tokenizer::of_folder(config.data.path);
  std::vector<std::uint32_t> text = tokenizer.encode(options.prompt);
  if (!tokenizer.is_bytes() && tokenizer.vocabulary() > config.model.vocabulary) {
    fail(ErrorCode::invalid_argument, "{}: its {} characters are more than model.vocabulary = {}",
         config.data.path, tokenizer.vocabulary(), config.model.vocabulary);
  }
  one.ranks = {};
  Session session(one, {.resume = true, .compares_numerics = false});
  if (!session.resumed())
    fail(ErrorCode::not_found, "the store {} holds no commit to sample from", config.store.path);
  const std::uint32_t context = session.spec().context;
  if (text.empty()) text.push_back(first_token(tokenizer));
  for (std::uint32_t n = 0; n < options.tokens; ++n) {
    // The last `context` tokens; what follows them is masked by causality and only fills the sample.
    const std::size_t seen = std::min<std::size_t>(text.size(), context);
    std::vector<std::uint32_t> window(context, 0);
    std::copy(text.end() - static_cast<std::ptrdiff_t>(seen), text.end(), window.begin());
    session.executor().set_contribution(0, window, std::vector<std::int32_t>(context, -1));
    session.executor().watch_row(static_cast<std::int64_t>(seen) - 1);
    session.engine().run(ProgramKind::eval, {});
    const double u = static_cast<double>(random_bits(options.seed, 0, n, 0) >> 11) * 0x1p-53;
    text.push_back(choose(session.executor().watched_logits(), options, u));
  }
  return tokenizer.decode(text);
}

}  // namespace terrace
