// Which samples a step trains on: the order is a function of (seed, position) alone, so a resume goes on at
// the very next sample and no rank count shows.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "src/data/token_file.h"

namespace terrace {

struct SampleRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t size() const { return end - begin; }
  friend bool operator==(const SampleRange&, const SampleRange&) = default;
};

// Of a step's n samples, contribution k of `contributions` takes [floor(k*n/C), floor((k+1)*n/C)): none where
// n < C leaves it none.
SampleRange contribution_range(std::uint64_t k, std::uint64_t samples, std::uint64_t contributions);

// What the step at the end of an epoch holds.
enum class LastBatch {
  straddle,      // samples_per_step always, so also the first samples of the next epoch
  short_of_full  // only what is left of the epoch
};

// "straddle" or "short". Throws invalid_argument naming both.
LastBatch parse_last_batch(std::string_view name);

// A target that counts for nothing.
inline constexpr std::int32_t kNoTarget = -1;

struct SamplerOptions {
  std::uint32_t context = 0;  // tokens of a sample
  std::uint64_t samples_per_step = 0;
  std::uint64_t contributions = 1;  // of a step, over all ranks
  std::uint64_t seed = 0;
  bool shuffle = true;       // false: windows in file order (evaluation)
  std::uint32_t stride = 0;  // tokens from the start of a window to that of the next; 0 = context
  LastBatch last_batch = LastBatch::straddle;
  std::int64_t ignore_token = -1;  // targets of this token are handed on as kNoTarget; -1 = none
};

// A sample is one window of context + 1 tokens; windows start `stride` apart, and those that do not fit whole
// are left out. Sample number p, counted from the start of the run, is window permutation(epoch, p mod
// windows) of epoch p / windows: each window once an epoch. A step takes the next samples_per_step of them,
// with LastBatch::short_of_full never more than its epoch has left. State: the position. Thread contract:
// const calls from any thread; advance and restore_state alone.
class DistributedSampler {
 public:
  // `tokens` must outlive the sampler. Throws invalid_argument for a file too short for one sample or with a
  // vocabulary above 2^31.
  DistributedSampler(const TokenFile& tokens, const SamplerOptions& options);

  const SamplerOptions& options() const { return options_; }
  std::uint64_t windows() const { return windows_; }    // samples of an epoch
  std::uint64_t position() const { return position_; }  // samples taken by the steps before this one
  std::uint64_t epoch() const { return position_ / windows_; }
  // Steps that cover an epoch from its first sample on: ceil(windows / samples_per_step).
  std::uint64_t steps_per_epoch() const;

  // The window of sample `position` of the run; it starts at token window * stride.
  std::uint64_t window_at(std::uint64_t position) const;

  // position() after that many more steps. Cost: constant.
  std::uint64_t position_after(std::uint64_t steps) const;

  // n: the samples of the step that starts `steps_ahead` steps after position().
  std::uint64_t samples_of_step(std::uint64_t steps_ahead = 0) const;
  // Those of its contribution k.
  std::uint64_t contribution_samples(std::uint64_t k, std::uint64_t steps_ahead = 0) const;

  // Tokens and targets of contribution k of that step: both are [contribution_samples(k)][context], target i
  // being the token after token i, or kNoTarget where that is ignore_token. Returns the real targets: those
  // that are not.
  std::uint64_t fill(std::uint64_t k, std::span<std::uint32_t> tokens, std::span<std::int32_t> targets,
                     std::uint64_t steps_ahead = 0) const;

  // To the next step: by the samples of this one.
  void advance() { position_ += samples_of_step(); }

  // As JSON. restore_state throws corrupt for what is no such JSON, and invalid_argument naming what differs
  // when the state is of another file, seed, context, stride or order. samples_per_step, contributions,
  // last_batch and ignore_token may differ: the run goes on at the very next sample.
  std::string save_state() const;
  void restore_state(const std::string& json);

 private:
  const TokenFile* tokens_;
  SamplerOptions options_;
  std::uint64_t windows_ = 0;
  std::uint64_t position_ = 0;
};

// Throws invalid_argument when the file's vocabulary is larger than the model's.
void require_vocabulary(const TokenFile& tokens, std::uint64_t model_vocabulary);

}  // namespace terrace
