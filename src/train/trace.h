// When each operation of a run's last steps ran, for chrome://tracing and Perfetto.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "src/plan/plan.h"
#include "src/runtime/runtime.h"

namespace terrace {

// "update h.3 chunk 17": what an operation does, by the model's names.
std::string op_name(const ModelShape& model, const Op& op);

// Keeps the times of the programs that ran last and writes them as JSON: a track a lane (more where transfers
// overlap), an event an operation that ran, with its bytes, FLOPs and step. Model and plan must outlive it.
// Thread contract: one thread. Cost: 16 bytes an operation of a kept program.
class TraceWriter {
 public:
  static constexpr std::size_t kKept = 3;

  // Makes the file. Throws io_failed by path.
  TraceWriter(const std::string& path, const ModelShape& model, const Plan& plan, std::size_t kept = kKept);

  // A program that has just ended. `step`: the number of the step that it ran, or that was last run.
  void add(std::uint64_t step, const StepOutcome& outcome);
  // Writes the file anew. Throws io_failed by path.
  void write() const;

 private:
  struct Kept {
    std::uint64_t step = 0;
    ProgramKind kind = ProgramKind::train;
    double start_us = 0;
    std::vector<OpTime> ops;
  };

  std::string path_;
  const ModelShape& model_;
  const Plan& plan_;
  std::size_t kept_most_;
  std::chrono::steady_clock::time_point begin_;
  std::deque<Kept> kept_;
};

// Throws invalid_argument for what is no plain file, io_failed when it cannot be opened to write; changes
// nothing in it and makes none.
void require_writable_trace(const std::string& path);

}  // namespace terrace
