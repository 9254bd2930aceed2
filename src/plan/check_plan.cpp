#include "src/plan/check_plan.h"

#include <algorithm>

#include "src/base/fail.h"
#include "src/plan/check_family.h"

namespace terrace {

CheckInput check_input(const ModelShape& model, const Plan& plan, std::uint32_t contributions) {
  CheckInput input;
  input.model = model;
  input.contributions = contributions;
  input.updates = plan.updates;
  for (std::size_t c = 0; c < plan.chunks.size(); ++c) {
    const Chunk& chunk = plan.chunks[c];
    input.chunks.push_back({chunk.unit, chunk.begin, chunk.numel, plan.placement.optimizer_state[c],
                            plan.placement.parameters[c], state_slot_bytes(chunk),
                            plan.ranks.owner(static_cast<std::uint32_t>(c)), chunk.master_only,
                            plan.ranks.keeps_whole(chunk.unit)});
  }
  const RankShape& shape = plan.ranks.shape();
  input.ranks = {
      shape.ranks,    plan.rank, shape.shard_size(), shape.replicate_size(), shape.keeps_all_parameters(),
      shape.reduction};
  return input;
}

namespace {

void require_legal_program(const StepProgram& program, const CheckInput& input) {
  const auto violations = check_program(program, input);
  check(violations.empty(), "the {} program breaks the rule '{}': {}", name_of(program.kind),
        violations.empty() ? "" : name_of(violations[0].rule), violations.empty() ? "" : violations[0].text);
}

}  // namespace

void require_legal(const ModelShape& model, const Plan& plan, std::uint32_t contributions) {
  const CheckInput input = check_input(model, plan, contributions);
  for (const StepProgram& program : plan.programs) {
    if (!program.ops.empty()) require_legal_program(program, input);
  }
  if (!plan.has(ProgramKind::train)) return;
  // Without a verdict, or on a rank that holds nothing, there may be nothing to drain. Then to do nothing
  // must be a legal program, and nothing may be carried either.
  StepProgram drain;
  if (plan.has(ProgramKind::drain)) {
    drain = plan.program(ProgramKind::drain);
  } else {
    drain = plan.program(ProgramKind::train);
    drain.kind = ProgramKind::drain;
    drain.ops.clear();
    std::erase_if(drain.slots, [](const Slot& slot) { return !slot.resident; });
    require_legal_program(drain, input);
  }
  std::vector<const StepProgram*> followers{&plan.program(ProgramKind::train), &drain};
  if (plan.has(ProgramKind::train_commit)) followers.push_back(&plan.program(ProgramKind::train_commit));
  for (const StepProgram* first : followers) {
    if (first == &drain) continue;
    for (const StepProgram* second : followers) {
      const auto violations = check_carried(*first, *second);
      check(violations.empty(), "the {} program cannot follow the {} program: {}", name_of(second->kind),
            name_of(first->kind), violations.empty() ? "" : violations[0].text);
    }
  }
}

void require_legal(const ModelShape& model, const std::vector<Plan>& plans, std::uint32_t contributions) {
  for (const Plan& plan : plans) {
    check(plan.rank == static_cast<std::size_t>(&plan - plans.data()), "plans are not in the order of ranks");
    require_legal(model, plan, contributions);
  }
  const CheckInput input = check_input(model, plans.at(0), contributions);
  for (int kind = 0; kind < kProgramKinds; ++kind) {
    std::vector<const StepProgram*> programs;
    bool any = false;
    for (const Plan& plan : plans) {
      const bool has = plan.has(static_cast<ProgramKind>(kind));
      programs.push_back(has ? &plan.program(static_cast<ProgramKind>(kind)) : nullptr);
      any = any || has;
    }
    if (!any) continue;
    StepProgram empty;
    empty.kind = static_cast<ProgramKind>(kind);
    std::replace(programs.begin(), programs.end(), static_cast<const StepProgram*>(nullptr),
                 static_cast<const StepProgram*>(&empty));
    const auto violations = check_family(programs, input.ranks);
    check(violations.empty(), "the {} programs of the ranks do not meet: {}", name_of(empty.kind),
          violations.empty() ? "" : violations[0].text);
  }
}

}  // namespace terrace
