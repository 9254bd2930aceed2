// Everything a run holds, line by line and tier by tier, known before the first step.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "src/plan/program.h"

namespace terrace {

struct LedgerLine {
  Tier tier = Tier::host;
  std::string name;
  std::uint64_t bytes = 0;
};

struct Ledger {
  std::vector<LedgerLine> lines;
  std::array<std::uint64_t, kTiers> budget_bytes{};  // 0: no such tier was given

  void add(Tier tier, std::string name, std::uint64_t bytes);  // nothing is added for 0 bytes
  std::uint64_t total(Tier tier) const;
};

// A table of all lines with totals and budgets; the largest line of a tier that does not fit is marked.
std::string to_text(const Ledger& ledger);

}  // namespace terrace
