// A small model trained in this process: what the end-to-end tests compare.
#pragma once

#include <string>
#include <vector>

#include "terrace/config.h"
#include "terrace/train.h"
#include "tests/support/temp_dir.h"

namespace terrace::e2e {

// A folder of its own with prepared tokens, removed in the destructor.
class Workspace {
 public:
  Workspace();

  const std::string& path() const { return folder_.path(); }
  // Three blocks of width 64 on 32 tokens; six samples a step in one contribution; everything left to the
  // planner with roomy budgets, no store.
  Config config() const;
  // The same with a store and an nvme tier in fresh folders.
  Config config_on_disk();

 private:
  TempDir folder_;
  int stores_ = 0;
};

struct Record {
  std::vector<double> losses;
  std::vector<double> norms;
  double eval_loss = 0;
  std::string hash;
  friend bool operator==(const Record&, const Record&) = default;
};
std::ostream& operator<<(std::ostream& out, const Record& record);

Record run(const Config& config, bool resume = false);

// The smallest budgets that the planner accepts for the configuration.
Config with_least_budgets(Config config);

PlacementShares only(const std::string& tier);
PlacementShares shares(double device, double host, double nvme);
void place_all(Config& config, const PlacementShares& where);

}  // namespace terrace::e2e
