#include "src/plan/compile.h"

#include <algorithm>

#include "src/base/fail.h"
#include "src/plan/compiler.h"

namespace terrace {

std::string_view name_of(Pool pool) {
  static constexpr std::array<std::string_view, kPools> kNames{
      "gathered parameters",      "contributions",
      "contributions received",   "activations and saved values",
      "activations brought back", "compute workspace",
      "parameter staging",        "gradient staging",
      "gradient sum staging",     "optimizer state slots",
      "activation staging"};
  return kNames[static_cast<std::size_t>(pool)];
}

Tier tier_of(Pool pool) {
  return pool <= Pool::workspace ? Tier::device : Tier::host;
}

PoolBytes measure_pools(const CompileInput& input, ProgramKind kind) {
  Compiler compiler(input, kind, std::nullopt, false);
  compiler.run();
  return compiler.peaks();
}

std::vector<std::vector<StepProgram>> compile(const std::vector<CompileInput>& inputs,
                                              const std::vector<ProgramKind>& kinds, const PoolBytes& pools) {
  // All with or all without: what one carries over the border of a step the others take, and ranks meet in
  // one order.
  const auto build = [&](bool ahead) {
    std::vector<std::vector<StepProgram>> programs(inputs.size());
    for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
      for (const ProgramKind kind : kinds) {
        Compiler compiler(inputs[rank], kind, pools, ahead);
        compiler.run();
        programs[rank].push_back(compiler.take());
      }
    }
    return programs;
  };
  if (!inputs.at(0).ahead) return build(false);
  try {
    return build(true);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::does_not_fit) throw;
  }
  return build(false);
}

}  // namespace terrace
