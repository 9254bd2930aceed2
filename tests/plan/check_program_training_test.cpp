// Which rule refuses a changed step, and in which words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/plan/tiny_variants.h"

namespace terrace {
namespace {

TinyStep commit_step() {
  TinyOptions options;
  options.kind = ProgramKind::train_commit;
  return tiny_step(options);
}

TEST(CheckProgram, WithNothingPendingACommitStillStoresStatesOfEarlierSteps) {
  TinyStep step = commit_step();
  const OpId write = first(step.program, [&](const Op& op) {
    return op.kind == OpKind::write_state && step.input.chunks[op.chunk].state_home == Tier::host;
  });
  step.program.ops[write].predicated = true;
  derive_waits(step.program);
  const auto found = check_program(step.program, step.input);
  ASSERT_EQ(found.size(), 1u) << texts(found);
  EXPECT_EQ(found[0].rule, Rule::commit);
  EXPECT_THAT(found[0].text, testing::HasSubstr("when nothing is pending"));
  EXPECT_THAT(found[0].text, testing::HasSubstr("older than this step"));
}

TEST(CheckProgram, FoldsInAnotherOrderAreRefused) {
  TinyOptions options;
  options.contributions = 3;
  options.grad_homes = {Tier::device};
  TinyStep step = tiny_step(options);
  const auto fold_of = [&](std::uint32_t k) {
    return first(step.program, [&](const Op& op) {
      return op.kind == OpKind::fold && op.chunk == 0 && op.micro_batch == k;
    });
  };
  std::swap(step.program.ops[fold_of(1)].accesses[0], step.program.ops[fold_of(2)].accesses[0]);
  EXPECT_FALSE(check_program(step.program, step.input).empty());
  std::swap(step.program.ops[fold_of(1)].micro_batch, step.program.ops[fold_of(2)].micro_batch);
  derive_waits(step.program);
  EXPECT_THAT(rules(step), testing::Contains(Rule::operand));
}

TEST(CheckProgram, RulesAreToldApart) {
  const TinyStep legal = commit_step();
  const auto expect_rule = [&](Rule rule, const std::function<void(TinyStep&)>& change) {
    TinyStep step = legal;
    change(step);
    EXPECT_THAT(rules(step), testing::Contains(rule)) << name_of(rule);
  };
  const auto kind = [&](OpKind wanted) {
    return first(legal.program, [&](const Op& op) { return op.kind == wanted; });
  };
  expect_rule(Rule::input, [](TinyStep& step) { step.input.chunks[1].first_numel += kBlockNumel; });
  expect_rule(Rule::input, [](TinyStep& step) { step.input.chunks.pop_back(); });
  expect_rule(Rule::input, [](TinyStep& step) { step.input.chunks[0].unit = 99; });
  expect_rule(Rule::form, [](TinyStep& step) { --step.program.tier_bytes[0]; });
  expect_rule(Rule::form, [](TinyStep& step) { step.program.contributions = 7; });
  expect_rule(Rule::form,
              [&](TinyStep& step) { step.program.ops[kind(OpKind::update)].lane = Lane::compute; });
  expect_rule(Rule::form, [&](TinyStep& step) { step.program.ops[kind(OpKind::commit)].lane = Lane::nvme; });
  expect_rule(Rule::form, [](TinyStep& step) { step.program.updates = UpdateTime::backward; });
  expect_rule(Rule::form, [](TinyStep& step) { step.input.updates = UpdateTime::backward; });
  for (const AccessMode mode : {AccessMode::read, AccessMode::write}) {  // it puts its trailer there
    expect_rule(Rule::form,
                [&](TinyStep& step) { step.program.ops[kind(OpKind::write_state)].accesses[0].mode = mode; });
  }
  expect_rule(Rule::form, [&](TinyStep& step) { step.program.ops[kind(OpKind::update)].chunk = kNone; });
  expect_rule(Rule::form,
              [&](TinyStep& step) { step.program.ops[kind(OpKind::backward)].accesses[0].slot = 9999; });
  expect_rule(Rule::form, [&](TinyStep& step) {
    step.program.ops[kind(OpKind::backward)].accesses[0].offset_bytes = ~std::uint64_t{0};
  });
  expect_rule(Rule::input, [](TinyStep& step) { step.input.model.units[1].shared_units = {1}; });
  for (const Item item : {Item::piece, Item::param_chunk, Item::state_chunk, Item::grad_sum}) {
    expect_rule(Rule::form, [&](TinyStep& step) {  // resident slots say whose they are
      Slot slot;
      slot.item = item;
      slot.resident = true;
      step.program.slots.push_back(slot);
    });
  }
  expect_rule(Rule::form, [&](TinyStep& step) {  // a transfer to the wrong tier
    step.program.slots[step.program.ops[kind(OpKind::write_state)].accesses[1].slot].tier = Tier::device;
  });
  expect_rule(Rule::operand, [&](TinyStep& step) {  // a state's transfer that moves something else
    step.program.slots[step.program.ops[kind(OpKind::write_state)].accesses[0].slot].item = Item::grad_sum;
  });
  expect_rule(Rule::operand, [&](TinyStep& step) {
    step.program.slots[step.program.ops[kind(OpKind::fold)].accesses[1].slot].item = Item::grad_chunk;
  });
  expect_rule(Rule::operand, [&](TinyStep& step) {
    step.program.slots[step.program.ops[kind(OpKind::update)].accesses[2].slot].item = Item::grad_chunk;
  });
  expect_rule(Rule::operand, [&](TinyStep& step) {
    std::erase_if(step.program.ops[kind(OpKind::forward)].accesses,
                  [](const Access& access) { return access.role == Role::output; });
  });
  expect_rule(Rule::home, [&](TinyStep& step) { step.input.chunks[0].state_bytes *= 2; });
  expect_rule(Rule::home, [&](TinyStep& step) { step.input.chunks[0].param_home = Tier::nvme; });
  expect_rule(Rule::order, [&](TinyStep& step) { step.program.ops[5].waits.push_back(5); });
  expect_rule(Rule::order, [&](TinyStep& step) { step.program.ops[5].waits.push_back(6); });
  expect_rule(Rule::order, [&](TinyStep& step) { step.program.ops[5].waits.push_back(kNone); });
  expect_rule(Rule::count, [&](TinyStep& step) { step.program.ops.pop_back(); });
  expect_rule(Rule::verdict,
              [&](TinyStep& step) { step.program.ops[kind(OpKind::grad_stats)].waits.clear(); });
  expect_rule(Rule::commit, [&](TinyStep& step) { step.program.ops[kind(OpKind::commit)].waits.clear(); });
  expect_rule(Rule::home, [&](TinyStep& step) {
    for (Slot& slot : step.program.slots) {
      if (slot.resident && slot.item == Item::param_chunk && slot.chunk == 0) slot.item = Item::grad_chunk;
    }
  });
  expect_rule(Rule::predicate,
              [&](TinyStep& step) { step.program.ops[kind(OpKind::update)].predicated = false; });
  expect_rule(Rule::operand,
              [&](TinyStep& step) { step.program.ops[kind(OpKind::update)].accesses.pop_back(); });
}

TEST(CheckProgram, TheSumOfTwoIsNotTheFirst) {
  TinyOptions options;
  options.updates = UpdateTime::backward;
  options.grad_dtype = DType::f32;  // a contribution and a sum have one size
  options.compact = false;
  TinyStep step = tiny_step(options);
  const OpId fold =
      first(step.program, [](const Op& op) { return op.kind == OpKind::fold && op.chunk == 0; });
  const OpId update =
      first(step.program, [](const Op& op) { return op.kind == OpKind::update && op.chunk == 0; });
  step.program.ops[update].accesses[1] = step.program.ops[fold].accesses[0];
  derive_waits(step.program);
  EXPECT_EQ(rules(step), std::set<Rule>{Rule::operand});
}

TEST(CheckProgram, ACommitWantsAnExtentOfEveryChunk) {
  for (const bool gone : {true, false}) {
    TinyStep step = commit_step();
    for (Slot& slot : step.program.slots) {
      if (slot.item != Item::state_chunk || slot.tier != Tier::nvme || slot.chunk != 2) continue;
      ASSERT_EQ(step.input.chunks[2].state_home, Tier::host);
      if (gone) {
        slot.chunk = 0;
      } else {
        slot.resident = false;
      }
    }
    const auto found = check_program(step.program, step.input);
    EXPECT_THAT(
        texts(found),
        testing::HasSubstr("the store has no extent (a resident state_chunk slot on nvme) of chunk 2"));
  }
}

TEST(CheckProgram, SaysWhatIsWrongWithASlot) {
  const auto says = [](const std::string& words, const std::function<void(TinyStep&)>& change) {
    TinyStep step = commit_step();
    change(step);
    bool found = false;
    for (const Violation& violation : check_program(step.program, step.input)) {
      found |= violation.text.find(words) != std::string::npos;
    }
    EXPECT_TRUE(found) << words;
  };
  says("is too small: wanted", [](TinyStep& step) { step.input.chunks[0].state_bytes *= 2; });
  says("cannot move slot", [](TinyStep& step) {
    const Op& op =
        step.program.ops[first(step.program, [](const Op& o) { return o.kind == OpKind::write_state; })];
    step.program.slots[op.accesses[0].slot].item = Item::grad_sum;
  });
  says("which holds other bytes of parameters of unit 0", [](TinyStep& step) {
    const Op chunk0 = step.program.ops[first(step.program, [](const Op& op) {
      return op.kind == OpKind::copy_to_device && op.chunk == 0 && !op.predicated;
    })];
    for (Op& op : step.program.ops) {
      if (op.kind == OpKind::copy_to_device && op.chunk == 1 && op.accesses[1].offset_bytes > 0 &&
          !op.predicated) {
        op.accesses[0] = chunk0.accesses[0];
      }
    }
    derive_waits(step.program);
  });
}

TEST(CheckProgram, RecomputationBelongsToTraining) {
  TinyOptions options;
  options.kind = ProgramKind::eval;
  TinyStep step = tiny_step(options);
  Op op = step.program
              .ops[first(step.program, [](const Op& o) { return o.kind == OpKind::forward && o.unit == 0; })];
  op.kind = OpKind::recompute;
  step.program.ops.push_back(op);
  derive_waits(step.program);
  EXPECT_THAT(rules(step), testing::Contains(Rule::count));
}

TEST(CheckProgram, EveryTiedUseIsAdded) {
  TinyOptions options;
  options.units = 4;
  options.tied = 2;
  TinyStep step = tiny_step(options);
  ASSERT_EQ(texts(check_program(step.program, step.input)), "");
  const OpId adds =
      first(step.program, [](const Op& op) { return op.kind == OpKind::backward && op.unit == 2; });
  for (Access& access : step.program.ops[adds].accesses) {
    if (access.role == Role::shared_grad) access.mode = AccessMode::write;  // over the first use
  }
  derive_waits(step.program);
  const auto found = check_program(step.program, step.input);
  ASSERT_FALSE(found.empty());
  EXPECT_THAT(found[0].text, testing::HasSubstr("takes the gradient of its tied uses"));

  // Added to what the last contribution left.
  TinyStep stale = tiny_step(options);
  SlotId old = kNone;
  for (Op& op : stale.program.ops) {
    for (Access& access : op.accesses) {
      if (access.role != Role::shared_grad || op.unit == 0) continue;
      if (op.micro_batch == 0) old = access.slot;
      if (op.micro_batch == 1 && op.unit == 2) access.slot = old;
    }
  }
  derive_waits(stale.program);
  EXPECT_THAT(texts(check_program(stale.program, stale.input)),
              testing::HasSubstr("takes the tied uses added before"));
}

}  // namespace
}  // namespace terrace
