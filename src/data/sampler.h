// Which samples a step trains on: the order is a function of (seed, position) alone, so a resume goes on at
// the very next sample and no rank count shows.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "src/data/token_file.h"

namespace terrace {

struct SampleRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t size() const { return end - begin; }
  friend bool operator==(const SampleRange&, const SampleRange&) = default;
};

// Of a step's n samples, contribution k of `contributions` takes [floor(k*n/C), floor((k+1)*n/C)).
SampleRange contribution_range(std::uint64_t k, std::uint64_t samples, std::uint64_t contributions);

struct SamplerOptions {
  std::uint32_t context = 0;  // tokens of a sample
  std::uint64_t samples_per_step = 0;
  std::uint64_t contributions = 1;  // of a step, over all ranks
  std::uint64_t seed = 0;
  bool shuffle = true;  // false: windows in file order (evaluation)
};

// A sample is one window of context + 1 tokens; windows start `context` apart, so each target is one window's
// only. Sample number p, counted from the start of the run, is window permutation(epoch, p mod windows) of
// epoch p / windows: each window once an epoch; a step may straddle two epochs. State: the position. Thread
// contract: const calls from any thread; advance and restore_state alone.
class DistributedSampler {
 public:
  // `tokens` must outlive the sampler. Throws invalid_argument for a file too short for one sample.
  DistributedSampler(const TokenFile& tokens, const SamplerOptions& options);

  const SamplerOptions& options() const { return options_; }
  std::uint64_t windows() const { return windows_; }    // samples of an epoch
  std::uint64_t position() const { return position_; }  // samples taken by the steps before this one
  std::uint64_t epoch() const { return position_ / windows_; }

  // The window of sample `position` of the run.
  std::uint64_t window_at(std::uint64_t position) const;

  // The samples of contribution k in the step that begins at position().
  std::uint64_t contribution_samples(std::uint64_t k) const;

  // Tokens and targets of contribution k of the step that starts `steps_ahead` steps after position(): both
  // are [contribution_samples(k)][context], target i being the token after token i.
  void fill(std::uint64_t k, std::span<std::uint32_t> tokens, std::span<std::uint32_t> targets,
            std::uint64_t steps_ahead = 0) const;

  // To the next step.
  void advance() { position_ += options_.samples_per_step; }

  // As JSON. restore_state throws corrupt for what is no such JSON, and invalid_argument naming what differs
  // when the state is of another file, seed, context or order; samples_per_step and contributions may differ.
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
