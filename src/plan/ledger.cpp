#include "src/plan/ledger.h"

#include <spdlog/fmt/fmt.h>

#include <utility>

#include "src/base/units.h"

namespace terrace {

void Ledger::add(Tier tier, std::string name, std::uint64_t bytes) {
  if (bytes > 0) lines.push_back({tier, std::move(name), bytes});
}

std::uint64_t Ledger::total(Tier tier) const {
  std::uint64_t sum = 0;
  for (const LedgerLine& line : lines) {
    if (line.tier == tier) sum += line.bytes;
  }
  return sum;
}

std::string to_text(const Ledger& ledger) {
  std::string text;
  for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
    const std::uint64_t total = ledger.total(tier);
    const std::uint64_t budget = ledger.budget_bytes[static_cast<std::size_t>(tier)];
    if (total == 0 && budget == 0) continue;
    const LedgerLine* largest = nullptr;
    for (const LedgerLine& line : ledger.lines) {
      if (line.tier == tier && (largest == nullptr || line.bytes > largest->bytes)) largest = &line;
    }
    text += fmt::format("{}\n", name_of(tier));
    for (const LedgerLine& line : ledger.lines) {
      if (line.tier != tier) continue;
      text += fmt::format("  {:<46} {:>12}{}\n", line.name, format_bytes(line.bytes),
                          total > budget && &line == largest ? "   <- the largest line" : "");
    }
    text += fmt::format("  {:<46} {:>12} of {}{}\n", "total", format_bytes(total), format_bytes(budget),
                        total > budget ? fmt::format(": {} too much", format_bytes(total - budget)) : "");
  }
  return text;
}

}  // namespace terrace
