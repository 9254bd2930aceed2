#include "src/plan/check_plan.h"

#include "src/base/fail.h"

namespace terrace {

CheckInput check_input(const ModelShape& model, const Plan& plan, std::uint32_t contributions) {
  CheckInput input;
  input.model = model;
  input.contributions = contributions;
  for (std::size_t c = 0; c < plan.chunks.size(); ++c) {
    const Chunk& chunk = plan.chunks[c];
    input.chunks.push_back({chunk.unit, chunk.begin, chunk.numel, plan.placement.optimizer_state[c],
                            plan.placement.parameters[c], state_slot_bytes(chunk.numel)});
  }
  return input;
}

void require_legal(const ModelShape& model, const Plan& plan, std::uint32_t contributions) {
  const CheckInput input = check_input(model, plan, contributions);
  for (const StepProgram& program : plan.programs) {
    if (program.ops.empty()) continue;
    const auto violations = check_program(program, input);
    check(violations.empty(), "the {} program breaks the rule '{}': {}", name_of(program.kind),
          violations.empty() ? "" : name_of(violations[0].rule),
          violations.empty() ? "" : violations[0].text);
  }
}

}  // namespace terrace
