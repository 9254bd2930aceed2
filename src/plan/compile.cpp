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

StepProgram compile(const CompileInput& input, ProgramKind kind, const PoolBytes& pools) {
  const auto build = [&](bool ahead) {
    Compiler compiler(input, kind, pools, ahead);
    compiler.run();
    return compiler.take();
  };
  try {
    return build(true);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::does_not_fit) throw;
  }
  return build(false);
}

}  // namespace terrace
