// What a step leaves pending, carries across its border and commits: which rule refuses a changed step, in
// both times of updates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/plan/tiny_variants.h"

namespace terrace {
namespace {

using testing::Contains;
using testing::HasSubstr;

TinyStep step_of(ProgramKind kind, UpdateTime updates) {
  TinyOptions options;
  options.kind = kind;
  options.updates = updates;
  return tiny_step(options);
}
TinyStep forward_step(ProgramKind kind = ProgramKind::train) {
  return step_of(kind, UpdateTime::next_forward);
}
TinyStep backward_step(ProgramKind kind = ProgramKind::train) {
  return step_of(kind, UpdateTime::backward);
}

OpId of_chunk(const StepProgram& program, OpKind kind, std::uint32_t chunk) {
  return first(program, [&](const Op& op) { return op.kind == kind && op.chunk == chunk; });
}
OpId of_kind(const StepProgram& program, OpKind kind) {
  return first(program, [&](const Op& op) { return op.kind == kind; });
}
OpId last_of_kind(const StepProgram& program, OpKind kind) {
  for (auto id = static_cast<OpId>(program.ops.size()); id-- > 0;) {
    if (program.ops[id].kind == kind) return id;
  }
  ADD_FAILURE() << "no " << name_of(kind);
  return 0;
}
// The operation that writes a slot carried out, or reads or updates one carried in.
OpId on_carried(const StepProgram& program, Carry carry, OpKind kind) {
  return first(program, [&](const Op& op) {
    return op.kind == kind && std::any_of(op.accesses.begin(), op.accesses.end(), [&](const Access& access) {
             return program.slots[access.slot].carry == carry;
           });
  });
}
SlotId carried(const StepProgram& program, Carry carry) {
  for (SlotId id = 0; id < program.slots.size(); ++id) {
    if (program.slots[id].carry == carry) return id;
  }
  ADD_FAILURE() << "nothing is carried";
  return 0;
}

// Operation `from` becomes operation `to`; waits follow the bytes.
void put_at(TinyStep& step, OpId from, OpId to) {
  auto& ops = step.program.ops;
  const auto at = [&](OpId id) { return ops.begin() + id; };
  if (from < to) {
    std::rotate(at(from), at(from) + 1, at(to) + 1);
  } else {
    std::rotate(at(to), at(from), at(from) + 1);
  }
  derive_waits(step.program);
}
void remove(TinyStep& step, OpId id) {
  step.program.ops.erase(step.program.ops.begin() + id);
  derive_waits(step.program);
}

std::string all_texts(const TinyStep& step) {
  std::string text;
  for (const Violation& violation : check_program(step.program, step.input)) text += violation.text + "\n";
  return text;
}

TEST(NextForward, ComputationWaitsForTheUpdateOfItsUnit) {
  TinyOptions options;
  options.state_homes = {Tier::host};  // updates alone, nothing to read or write
  options.param_homes = options.grad_homes = {Tier::host};
  TinyStep step = tiny_step(options);
  ASSERT_EQ(all_texts(step), "");
  const OpId update = of_chunk(step.program, OpKind::update, 1);
  put_at(step, update, of_kind(step.program, OpKind::forward));
  EXPECT_EQ(rules(step), std::set<Rule>{Rule::operand});
  EXPECT_THAT(all_texts(step), HasSubstr("takes its parameters"));
  EXPECT_THAT(all_texts(step), HasSubstr("which holds parameters of unit 0 (before the update); wanted "
                                         "parameters of unit 0 (updated)"));
}

TEST(NextForward, AnUpdateTakesTheSumOfTheStepBefore) {
  for (const std::uint32_t contributions : {1u, 2u}) {
    TinyOptions options;
    options.contributions = contributions;
    options.state_homes = options.param_homes = options.grad_homes = {Tier::host};
    TinyStep step = tiny_step(options);
    ASSERT_EQ(all_texts(step), "");
    const OpId update = of_chunk(step.program, OpKind::update, 4);
    put_at(step, update, last_of_kind(step.program, OpKind::fold));
    EXPECT_THAT(all_texts(step), HasSubstr("takes the summed gradient"));
    EXPECT_THAT(all_texts(step),
                HasSubstr(contributions == 1 ? "which holds contribution 0 of unit 2; wanted the sum of "
                                               "chunk 4 of the step before"
                                             : "which holds the sum of chunk 4 over 2 summands; "
                                               "wanted the sum of chunk 4 of the step before"));
  }
}

TEST(NextForward, WhatIsCarriedOutIsTheNewestState) {
  TinyStep missing = forward_step();
  remove(missing, on_carried(missing.program, Carry::out, OpKind::read_state));
  EXPECT_EQ(rules(missing), (std::set<Rule>{Rule::undefined, Rule::home}));

  TinyStep stale = forward_step();
  const OpId write = on_carried(stale.program, Carry::in, OpKind::write_state);
  put_at(stale, on_carried(stale.program, Carry::out, OpKind::read_state), write);
  EXPECT_THAT(rules(stale), Contains(Rule::home));
  EXPECT_THAT(all_texts(stale), HasSubstr("holds state of chunk 1 (before the update); wanted state of chunk "
                                          "1 (updated)"));
}

TEST(NextForward, AllThatIsPendingIsPredicatedAndNothingElse) {
  const auto flipped = [](const std::function<OpId(const StepProgram&)>& which) {
    TinyStep step = forward_step(ProgramKind::train_commit);
    bool& predicated = step.program.ops[which(step.program)].predicated;
    predicated = !predicated;
    return step;
  };
  const auto update = [](const StepProgram& program) { return of_kind(program, OpKind::update); };
  const auto write_state = [](const StepProgram& program) {
    return on_carried(program, Carry::in, OpKind::write_state);
  };
  const auto write_param = [](const StepProgram& program) { return of_kind(program, OpKind::write_param); };
  for (const auto& which :
       std::vector<std::function<OpId(const StepProgram&)>>{update, write_state, write_param}) {
    EXPECT_THAT(rules(flipped(which)), Contains(Rule::predicate));
  }
  const TinyStep ahead =
      flipped([](const StepProgram& program) { return on_carried(program, Carry::out, OpKind::read_state); });
  EXPECT_EQ(rules(ahead), std::set<Rule>{Rule::home});
  EXPECT_THAT(all_texts(ahead), HasSubstr("when nothing is pending: at the end, slot"));
  for (const OpKind kind : {OpKind::fold, OpKind::grad_stats, OpKind::forward, OpKind::commit}) {
    const TinyStep step = flipped([&](const StepProgram& program) { return of_kind(program, kind); });
    EXPECT_THAT(rules(step), Contains(Rule::predicate)) << name_of(kind);
  }
}

TEST(NextForward, ACommitStandsAfterEveryWrite) {
  TinyStep step = forward_step(ProgramKind::train_commit);
  const OpId commit = of_kind(step.program, OpKind::commit);
  put_at(step, commit, last_of_kind(step.program, OpKind::write_state));
  EXPECT_EQ(rules(step), std::set<Rule>{Rule::commit});
  EXPECT_THAT(all_texts(step), HasSubstr("must wait for"));
  EXPECT_THAT(all_texts(step), HasSubstr("at the commit, slot"));
}

TEST(NextForward, SumsAreLeftWholeForTheNextProgram) {
  for (const std::uint32_t contributions : {1u, 2u}) {
    TinyOptions options;
    options.contributions = contributions;
    TinyStep step = tiny_step(options);
    remove(step, last_of_kind(step.program, OpKind::write_gradient));
    EXPECT_THAT(rules(step), Contains(Rule::home));
    EXPECT_THAT(all_texts(step), HasSubstr("(grad_sum of chunk 2 on nvme"));
    TinyStep none = tiny_step(options);
    for (Slot& slot : none.program.slots) {
      if (slot.item == Item::grad_sum && slot.chunk == 0) slot.resident = false;
    }
    EXPECT_THAT(all_texts(none), HasSubstr("no resident slot on its home tier holds the summed gradient of "
                                           "chunk 0"));
  }
}

TEST(Backward, UpdatesWaitForTheCommit) {
  TinyStep step = backward_step(ProgramKind::train_commit);
  put_at(step, of_kind(step.program, OpKind::commit), last_of_kind(step.program, OpKind::update));
  EXPECT_THAT(rules(step), Contains(Rule::commit));
  EXPECT_THAT(all_texts(step), HasSubstr("must wait for"));
  EXPECT_THAT(all_texts(step),
              HasSubstr("holds state of chunk 3 (updated); wanted state of chunk 3 (before the "
                        "update)"));

  // In the list's order, but not made to wait.
  TinyStep loose = backward_step(ProgramKind::train_commit);
  const OpId commit = of_kind(loose.program, OpKind::commit);
  for (Op& op : loose.program.ops) std::erase(op.waits, commit);
  EXPECT_THAT(rules(loose), Contains(Rule::commit));
}

TEST(Backward, ACommitStandsAfterTheWritesOfTheStepBefore) {
  TinyStep step = backward_step(ProgramKind::train_commit);
  ASSERT_EQ(all_texts(step), "");
  const OpId write = on_carried(step.program, Carry::in, OpKind::write_state);
  put_at(step, write, of_kind(step.program, OpKind::commit));
  EXPECT_EQ(rules(step), std::set<Rule>{Rule::commit});
  EXPECT_THAT(all_texts(step), HasSubstr("(older than this step)"));

  TinyStep loose = backward_step(ProgramKind::train_commit);
  loose.program.ops[of_kind(loose.program, OpKind::commit)].waits.clear();
  EXPECT_THAT(rules(loose), Contains(Rule::commit));
  EXPECT_THAT(all_texts(loose), HasSubstr("(commit on commit) must wait for"));
}

TEST(Backward, OnlyWritesOfCarriedStatesArePending) {
  TinyStep step = backward_step();
  Op& update = step.program.ops[of_kind(step.program, OpKind::update)];
  update.predicated = true;
  EXPECT_THAT(rules(step), Contains(Rule::predicate));

  step = backward_step();
  step.program.ops[on_carried(step.program, Carry::in, OpKind::write_state)].predicated = false;
  EXPECT_THAT(rules(step), Contains(Rule::predicate));
  EXPECT_THAT(all_texts(step), HasSubstr("is not predicated, and nothing may be pending"));

  step = backward_step();
  const OpId own = first(step.program, [&](const Op& op) {
    return op.kind == OpKind::write_state && step.program.slots[op.accesses[0].slot].carry == Carry::none;
  });
  step.program.ops[own].predicated = true;
  EXPECT_THAT(rules(step), Contains(Rule::predicate));
}

TEST(Backward, ParametersKeepOneVersionUntilTheirLastUse) {
  TinyOptions options;
  options.updates = UpdateTime::backward;
  options.contributions = 1;
  options.state_homes = options.param_homes = options.grad_homes = {Tier::host};
  TinyStep step = tiny_step(options);
  ASSERT_EQ(all_texts(step), "");
  // Unit 1's last gather moves behind its update.
  OpId gather = 0;
  for (OpId id = 0; id < step.program.ops.size(); ++id) {
    if (step.program.ops[id].kind == OpKind::copy_to_device && step.program.ops[id].chunk == 2) gather = id;
  }
  const OpId update = of_chunk(step.program, OpKind::update, 2);
  ASSERT_LT(gather, update);
  put_at(step, update, gather);
  EXPECT_THAT(all_texts(step), HasSubstr("which holds parameters of unit 1 (updated); wanted parameters of "
                                         "unit 1 (before the update)"));
}

TEST(Backward, AnUpdateTakesItsStateFromTheStoreAndTheWholeSum) {
  TinyStep step = backward_step();
  const SlotId in = carried(step.program, Carry::in);
  Op& update = step.program.ops[on_carried(step.program, Carry::out, OpKind::update)];
  update.accesses[0].slot = in;
  derive_waits(step.program);
  EXPECT_THAT(all_texts(step), HasSubstr("when nothing is pending: operation"));
  EXPECT_THAT(all_texts(step), HasSubstr("which holds nothing; wanted state of chunk 1 (before the update)"));

  TinyOptions options;
  options.updates = UpdateTime::backward;
  options.grad_homes = {Tier::host};
  step = tiny_step(options);
  put_at(step, of_chunk(step.program, OpKind::update, 4), of_chunk(step.program, OpKind::fold, 4) + 1);
  EXPECT_THAT(all_texts(step), HasSubstr("which holds the sum of chunk 4 over 1 summands; wanted the sum "
                                         "of chunk 4 over 2 summands"));
}

TEST(Backward, AStateIsWrittenOnceOrCarried) {
  TinyStep twice = backward_step();
  Op write = twice.program.ops[on_carried(twice.program, Carry::in, OpKind::write_state)];
  write.accesses[0].slot = carried(twice.program, Carry::out);
  write.predicated = false;
  twice.program.ops.push_back(write);
  derive_waits(twice.program);
  EXPECT_EQ(rules(twice), std::set<Rule>{Rule::count});

  TinyStep stale = backward_step();
  const OpId update = on_carried(stale.program, Carry::out, OpKind::update);
  stale.program.slots[stale.program.ops[update].accesses[0].slot].carry = Carry::none;
  EXPECT_EQ(rules(stale), (std::set<Rule>{Rule::count, Rule::home}));
}

TEST(Drain, DoesWhatIsPendingAndNothingElse) {
  for (const UpdateTime updates : kUpdateTimes) {
    TinyStep step = step_of(ProgramKind::drain, updates);
    ASSERT_EQ(all_texts(step), "");
    remove(step, on_carried(step.program, Carry::in, OpKind::write_state));
    EXPECT_THAT(rules(step), Contains(Rule::count));
    EXPECT_THAT(rules(step), Contains(Rule::home));

    step = step_of(ProgramKind::drain, updates);
    step.program.kind = ProgramKind::train;
    EXPECT_THAT(rules(step), Contains(Rule::count));
    step.program.kind = ProgramKind::drain;
    Op commit;
    commit.kind = OpKind::commit;
    commit.lane = Lane::commit;
    step.program.ops.push_back(commit);
    derive_waits(step.program);
    EXPECT_THAT(rules(step), Contains(Rule::count));
  }
  TinyStep step = backward_step(ProgramKind::drain);
  Op update;
  update.kind = OpKind::update;
  update.lane = Lane::optimizer;
  update.chunk = 0;
  step.program.ops.push_back(update);
  EXPECT_THAT(rules(step), Contains(Rule::count));
}

TEST(Carried, OnlyProgramsThatRunOneAfterAnotherCarryStatesOnHost) {
  const auto refused = [](TinyStep step, const std::string& words, const std::function<void(Slot&)>& change,
                          Carry carry = Carry::in) {
    change(step.program.slots[carried(step.program, carry)]);
    bool found = false;
    for (const Violation& violation : check_program(step.program, step.input)) {
      found |= violation.rule == Rule::form && violation.text.find(words) != std::string::npos;
    }
    EXPECT_TRUE(found) << words << "\n" << all_texts(step);
  };
  const std::string wanted = "wanted a state_chunk on host that is not resident";
  refused(forward_step(), wanted, [](Slot& slot) { slot.resident = true; });
  refused(forward_step(), wanted, [](Slot& slot) { slot.item = Item::param_chunk; });
  refused(forward_step(), wanted, [](Slot& slot) { slot.tier = Tier::device; });
  refused(forward_step(), "it does not say whose it is", [](Slot& slot) { slot.chunk = kNone; });
  refused(backward_step(), "does not live on nvme", [](Slot& slot) { slot.chunk = 0; });
  refused(forward_step(ProgramKind::drain), "a drain program carries nothing that way",
          [](Slot& slot) { slot.carry = Carry::out; });
  refused(
      forward_step(), "so is another slot of this chunk", [](Slot& slot) { slot.carry = Carry::in; },
      Carry::out);
  for (const ProgramKind kind :
       {ProgramKind::eval, ProgramKind::materialize, ProgramKind::commit, ProgramKind::visit}) {
    for (const Carry carry : {Carry::in, Carry::out}) {
      TinyStep step = forward_step(kind);
      Slot slot;
      slot.tier = Tier::host;
      slot.item = Item::state_chunk;
      slot.carry = carry;
      slot.chunk = 0;
      step.program.slots.push_back(slot);
      EXPECT_THAT(all_texts(step), HasSubstr("program carries nothing that way")) << name_of(kind);
    }
    // Nor is anything pending.
    TinyStep step = forward_step(kind);
    step.program.ops[0].predicated = true;
    EXPECT_THAT(rules(step), Contains(Rule::predicate)) << name_of(kind);
  }
}

TEST(CheckCarried, WhatIsCarriedOutIsTakenInAtTheSamePlace) {
  for (TinyOptions options : varied()) {
    if (options.kind != ProgramKind::train && options.kind != ProgramKind::train_commit) continue;
    const TinyStep before = tiny_step(options);
    for (const ProgramKind kind : {ProgramKind::train, ProgramKind::train_commit, ProgramKind::drain}) {
      options.kind = kind;
      const TinyStep after = tiny_step(options);
      EXPECT_EQ(texts(check_carried(before.program, after.program)), "") << words(options);
    }
  }
}

TEST(CheckCarried, RefusesOtherChunksAndOtherPlaces) {
  const StepProgram before = forward_step().program;
  StepProgram after = forward_step(ProgramKind::drain).program;
  const SlotId in = carried(after, Carry::in);
  const Slot right = after.slots[in];
  const auto found_after = [&](const std::function<void(Slot&)>& change) {
    change(after.slots[in]);
    const auto found = check_carried(before, after);
    after.slots[in] = right;
    return found;
  };
  for (const auto& change : std::vector<std::function<void(Slot&)>>{
           [](Slot& slot) { ++slot.offset_bytes; }, [](Slot& slot) { --slot.bytes; },
           [](Slot& slot) { slot.chunk = 3; }, [](Slot& slot) { slot.tier = Tier::device; }}) {
    const auto found = found_after(change);
    ASSERT_EQ(found.size(), 2u);
    EXPECT_EQ(found[0].rule, Rule::carried);
    EXPECT_EQ(found[0].slot, carried(before, Carry::out));
    EXPECT_EQ(found[1].slot, in);
    EXPECT_THAT(found[0].text,
                HasSubstr("is carried out by the train program and not taken in by the drain"));
    EXPECT_THAT(found[1].text, HasSubstr("is carried in by the drain program and not left by the train"));
  }
  EXPECT_EQ(found_after([](Slot& slot) { slot.carry = Carry::none; }).size(), 1u);
  EXPECT_TRUE(found_after([](Slot&) {}).empty());
  after.slots.push_back(right);
  after.slots.back().chunk = 3;
  EXPECT_EQ(check_carried(before, after).size(), 1u);
  EXPECT_EQ(check_carried(after, before).size(), 1u);  // a drain leaves nothing
}

}  // namespace
}  // namespace terrace
