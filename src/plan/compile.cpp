#include "src/plan/compile.h"

#include <algorithm>

#include "src/base/fail.h"
#include "src/plan/compiler.h"

namespace terrace {

std::string_view name_of(Pool pool) {
  static constexpr std::array<std::string_view, kPools> kNames{
      "gathered parameters",      "contributions",        "activations and saved values",
      "activations brought back", "compute workspace",    "parameter staging",
      "gradient staging",         "gradient sum staging", "optimizer state slots",
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

std::vector<StepProgram> compile(const CompileInput& input, const std::vector<ProgramKind>& kinds,
                                 const PoolBytes& pools) {
  // All with or all without: what one carries over the border of a step the others take.
  const auto build = [&](bool ahead) {
    std::vector<StepProgram> programs;
    for (const ProgramKind kind : kinds) {
      Compiler compiler(input, kind, pools, ahead);
      compiler.run();
      programs.push_back(compiler.take());
    }
    return programs;
  };
  if (!input.ahead) return build(false);
  try {
    return build(true);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::does_not_fit) throw;
  }
  return build(false);
}

}  // namespace terrace
