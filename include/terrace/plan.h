// What a run would hold and move, before anything is allocated: what `terrace plan` prints.
#pragma once

#include <string>

#include "terrace/config.h"

namespace terrace {

struct PlanReport {
  bool fits = false;
  // The ledger of every tier line by line, where each class of data goes, bytes per lane and step; when it
  // does not fit, the line that is too large and the smallest budgets that would do.
  std::string text;
};

// Pure: reads no file and measures nothing. Throws invalid_argument for a configuration that no budget could
// help.
PlanReport plan_report(const Config& config);

}  // namespace terrace
