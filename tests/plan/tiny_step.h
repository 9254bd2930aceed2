// Step programs of a tiny model, written the obvious way: nothing fetched ahead, waits from comparing every
// pair of operations. Shares no code with the compiler or the checker.
#pragma once

#include <cstdint>
#include <vector>

#include "src/plan/check_program.h"

namespace terrace {

struct TinyOptions {
  ProgramKind kind = ProgramKind::train;
  std::uint32_t units = 3;
  std::uint32_t contributions = 2;
  std::uint32_t tied = 0;                                 // how many of the last units share unit 0
  bool recompute = false;                                 // of units between the first and the last
  Tier activations = Tier::device;                        // of unit 0's output, between forward and backward
  std::vector<Tier> state_homes{Tier::host, Tier::nvme};  // of chunk c: [c % size]
  std::vector<Tier> param_homes{Tier::device, Tier::host, Tier::nvme};
  std::vector<Tier> grad_homes{Tier::host, Tier::device, Tier::nvme};
  DType grad_dtype = DType::bf16;
  bool compact = true;  // dead slots' bytes are used again
};

struct TinyStep {
  StepProgram program;
  CheckInput input;
};

TinyStep tiny_step(const TinyOptions& options);

// The two operations touch a byte in common and at least one writes it.
bool conflict(const StepProgram& program, OpId a, OpId b);

// Replaces all waits: of every pair that conflicts, and of what must wait for the verdict or precede a
// commit, the later waits for the earlier; then what is implied is removed.
void derive_waits(StepProgram& program);

}  // namespace terrace
