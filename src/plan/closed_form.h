// Closed forms for what a step stores, sends and at best takes. Pure arithmetic, for tests and reports.
// Sources: the ZeRO stages of Rajbhandari et al. (2020), with contributions folded by one owner per element.
#pragma once

#include <cstdint>
#include <vector>

#include "src/plan/program.h"

namespace terrace {

enum class Stage : std::uint8_t { replicated = 0, optimizer = 1, gradients = 2, parameters = 3 };

// Model states of one rank: 2 bytes of parameter, 2 of gradient and 12 of master and moments an element.
// Nothing frozen or kept resident; accumulators and staging are not counted.
//   stage 0: 16 P    1: 4 P + 12 P/N    2: 2 P + 14 P/N    3: 16 P/N
// P is the padded number of elements, a multiple of N = ranks (else invalid_argument).
std::uint64_t model_state_bytes(Stage stage, std::uint64_t padded_numel, std::uint64_t ranks);

// Elements one rank sends a step, with M contributions of each rank.
//   stages 0 to 2: (M + 1) P (N-1)/N    stage 3: 3 M P (N-1)/N
// Reduction::last (stages 0 and 1): 2 P (N-1)/N for any M. Reduction::grouped sends what `each` sends.
std::uint64_t sent_numel(Stage stage, std::uint64_t padded_numel, std::uint64_t ranks,
                         std::uint64_t contributions_per_rank, Reduction reduction = Reduction::each);

// S shards x R replicas, N = S R. One shard is stage 0, one replica is stage 3.
//   states: 16 P/S
//   sent: M P (N-1)/N contributions to the owner that folds + P (R-1)/N sums to the other replicas + 2 M P
//   (S-1)/S gathers
// Reduction::hierarchical: M P (S-1)/S within the replica + M P (R-1)/N between replicas for the
// contributions.
std::uint64_t hybrid_state_bytes(std::uint64_t padded_numel, std::uint64_t shards);
std::uint64_t hybrid_sent_numel(std::uint64_t padded_numel, std::uint64_t shards, std::uint64_t replicas,
                                std::uint64_t contributions_per_rank, Reduction reduction = Reduction::each);

// Of Q padded elements in units that stay whole on every rank of a shard group of S (parts equal, else
// invalid_argument): what a rank stores beside the states above, and what it sends less a step, as they are
// gathered once and not twice for each of M contributions.
//   stored: 2 Q (S-1)/S    not sent: (2 M - 1) Q (S-1)/S
std::uint64_t kept_whole_bytes(std::uint64_t kept_numel, std::uint64_t shards);
std::uint64_t kept_whole_unsent_numel(std::uint64_t kept_numel, std::uint64_t shards,
                                      std::uint64_t contributions_per_rank);

// NVMe traffic of the optimizer a step: 12 bytes an element each way, and 2 more written where the 16-bit
// parameters live there too.
std::uint64_t optimizer_read_bytes(std::uint64_t numel);
std::uint64_t optimizer_write_bytes(std::uint64_t numel, bool parameters_on_nvme);

// What bounds a step. Times in seconds, of one contribution; vectors by piece, in forward order, of one
// length (other_disk_s may be empty).
struct StepCosts {
  std::vector<double> forward_s;
  std::vector<double> backward_s;   // recomputation included
  std::vector<double> state_bytes;  // read a step, and as many written
  double state_slot_bytes = 0;      // states that memory holds meanwhile
  double disk_bytes_per_s = 0;      // reads and writes together, both at once
  std::uint32_t contributions = 1;  // M
  double busiest_lane_s = 0;        // lanes that share cores count as one
  // Of the disk's other traffic (parameters, gradients, activations), what must move in the open window
  // before the piece's forward (after its backward, where there is no verdict) and not for a piece before it;
  // and what must move while the window is closed.
  std::vector<double> other_disk_s;
  double closed_disk_s = 0;
};

// The same bound with its parts. The window is open where the disk may have to be waited for, piece by piece:
// in the first contribution's forward, or in the last one's backward.
struct BoundParts {
  double bound_s = 0;
  double closed_s = 0;  // the closed window: the longer of its compute and closed_disk_s
  bool closed_by_disk = false;
  double open_s = 0;  // the open window, through the piece that makes it longest
  std::size_t piece = 0;
  double piece_disk_s = 0;       // of open_s, what the disk takes before (after) that piece
  bool by_busiest_lane = false;  // busiest_lane_s is longer than both windows together
};

// Updates wait for the verdict on the whole gradient and run in forward order, inside the next step:
//   max(busiest lane, M B + (M-1) F + max_i [t(2 (Q_1 + ... + Q_i - S)+) + F_i + ... + F_n])
BoundParts bound_parts_with_verdict(const StepCosts& costs);
double step_bound_with_verdict_s(const StepCosts& costs);

// Updates start during backward:
//   max(busiest lane, M F + (M-1) B + max_i [B_n + ... + B_i + t(2 (Q_i + ... + Q_1 - S)+)])
BoundParts bound_parts_without_verdict(const StepCosts& costs);
double step_bound_without_verdict_s(const StepCosts& costs);

}  // namespace terrace
