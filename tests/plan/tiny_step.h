// Step programs of a tiny model, written the obvious way: nothing fetched ahead but what is carried, waits
// from comparing every pair of operations. Shares no code with the compiler or the checker.
#pragma once

#include <cstdint>
#include <vector>

#include "src/plan/check_program.h"
#include "tests/plan/tiny_layout.h"

namespace terrace {

struct TinyOptions {
  ProgramKind kind = ProgramKind::train;
  UpdateTime updates = UpdateTime::next_forward;
  // How many chunks' states are carried: the first ones that do not live on host (backward: that live on
  // nvme).
  std::uint32_t carried = 1;
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

}  // namespace terrace
