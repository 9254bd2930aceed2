// What a run would hold, move and take, before anything is allocated: what `terrace plan` prints.
#pragma once

#include <functional>
#include <string>

#include "terrace/config.h"

namespace terrace {

// What a machine gives with all its cores at one kind of work, alone.
struct MachineRates {
  double product_gflops = 0;  // matrix products of the model's shape and type
  double adamw_ns = 0;        // AdamW, a parameter
  double copy_gbps = 0;       // 1e9 bytes copied a second
  double checksum_gbps = 0;
  double disk_read_gbps = 0;  // 0: not measured
  double disk_write_gbps = 0;
  double disk_both_gbps = 0;  // read and written at once, added up
  std::string disk;           // how the disk was measured, or why not
};

// Measures this machine, now: about a second on compute.threads threads, up to 200 MB of memory meanwhile.
// `disk`: also the folders of tiers.nvme, which takes writing 512 MiB to each and leaves nothing; where that
// is not possible, MachineRates::disk says why. Sets the number of threads of this process.
MachineRates measure_machine(const Config& config, bool disk);

struct PlanReport {
  bool fits = false;
  // The ledger of every tier line by line, where each class of data goes, slots and how far they let the run
  // read ahead, bytes per lane and step; given rates, the predicted time of a step, its bound and what limits
  // it. When it does not fit, the line that is too large and the smallest budgets that would do.
  std::string text;
};

// Measures nothing itself and reads no file but the kernel's on huge pages. `rates` is called at most once,
// when the run fits, and told whether a step moves anything to or from a disk; without it no time is
// predicted. Throws invalid_argument for a configuration that no budget could help.
PlanReport plan_report(const Config& config, const std::function<MachineRates(bool disk)>& rates = {});

}  // namespace terrace
