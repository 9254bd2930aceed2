// Slots, budgets and what they hold, on programs written by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/plan/check_program.h"
#include "src/plan/check_rules.h"
#include "tests/plan/program_builder.h"

namespace terrace {
namespace {

using check_rules::Findings;

std::vector<Violation> overlaps(const StepProgram& program) {
  Findings findings;
  check_rules::check_overlap(program, findings);
  return findings.take();
}

std::vector<Violation> undefined(const StepProgram& program) {
  Findings findings;
  check_rules::check_defined(program, findings);
  return findings.take();
}

// Two slots: the first accessed by operations 0 and 1, the second by 1 + gap and after.
StepProgram two_slots(std::uint64_t second_offset, OpId gap) {
  ProgramBuilder builder;
  const SlotId a = builder.slot(Tier::host, 100, 50);
  const SlotId b = builder.slot(Tier::host, second_offset, 50);
  builder.op(OpKind::update, Lane::optimizer, {}, {builder.write(a)});
  builder.op(OpKind::update, Lane::optimizer, {}, {builder.read(a)});
  if (gap == 0) {
    builder.program.ops[1].accesses.push_back(builder.write(b));
  } else {
    builder.op(OpKind::update, Lane::optimizer, {}, {builder.write(b)});
  }
  return builder.program;
}

TEST(CheckOverlap, SlotsMayShareBytesOnlyWhenTheirIntervalsAreDisjoint) {
  for (const std::uint64_t offset : {51u, 75u, 100u, 125u, 149u}) {
    EXPECT_EQ(overlaps(two_slots(offset, 0)).size(), 1u) << offset;
    EXPECT_TRUE(overlaps(two_slots(offset, 1)).empty()) << offset;
  }
  for (const std::uint64_t offset : {0u, 50u, 150u, 151u})
    EXPECT_TRUE(overlaps(two_slots(offset, 0)).empty()) << offset;
}

TEST(CheckOverlap, NothingOverlapsAResidentSlot) {
  StepProgram program = two_slots(120, 1);
  ASSERT_TRUE(overlaps(program).empty());
  program.slots[0].resident = true;
  ASSERT_EQ(overlaps(program).size(), 1u);
  EXPECT_THAT(overlaps(program)[0].text, testing::HasSubstr("share bytes while both are live"));
  program.slots[0].resident = false;
  program.slots[1].resident = true;
  EXPECT_EQ(overlaps(program).size(), 1u);
  program.slots[1].tier = Tier::device;
  EXPECT_TRUE(overlaps(program).empty());
}

TEST(CheckOverlap, AResidentSlotThatIsNeverAccessedCountsAndAnotherDoesNot) {
  StepProgram program = two_slots(500, 0);
  program.slots.push_back(program.slots[0]);
  EXPECT_TRUE(overlaps(program).empty());
  program.slots.back().resident = true;
  EXPECT_EQ(overlaps(program).size(), 1u);
}

// Three operations, each with a slot of its own; `carry` is that of the second.
StepProgram carried_in_the_middle(Carry carry) {
  ProgramBuilder builder;
  for (const std::uint64_t offset : {100u, 200u, 300u}) {
    builder.op(OpKind::update, Lane::optimizer, {}, {builder.write(builder.slot(Tier::host, offset, 50))});
  }
  builder.program.slots[1].carry = carry;
  return builder.program;
}

TEST(CheckOverlap, NothingOverlapsACarriedSlotBeforeItsLastOrAfterItsFirstAccess) {
  const auto shares = [](Carry carry, SlotId other) {
    StepProgram program = carried_in_the_middle(carry);
    program.slots[other].offset_bytes = 249;
    return overlaps(program).size() == 1;
  };
  EXPECT_TRUE(shares(Carry::in, 0));
  EXPECT_FALSE(shares(Carry::in, 2));
  EXPECT_FALSE(shares(Carry::out, 0));
  EXPECT_TRUE(shares(Carry::out, 2));
  EXPECT_FALSE(shares(Carry::none, 0));
  EXPECT_FALSE(shares(Carry::none, 2));
}

TEST(CheckOverlap, ACarriedSlotThatIsNeverAccessedLivesAtItsBorder) {
  StepProgram program = carried_in_the_middle(Carry::in);
  program.ops[1].accesses.clear();
  program.slots[2].offset_bytes = 249;  // taken in, and in nobody's hands: all through the list
  EXPECT_EQ(overlaps(program).size(), 1u);
  program.slots[1].carry = Carry::out;
  EXPECT_TRUE(overlaps(program).empty());
  program.slots[2].resident = true;
  EXPECT_EQ(overlaps(program).size(), 1u);
  program.slots[2].resident = false;
  program.slots[2].carry = Carry::out;
  EXPECT_EQ(overlaps(program).size(), 1u);
}

TEST(CheckOverlap, ASlotCarriedOutMayTakeThePlaceOfTheOneCarriedIn) {
  ProgramBuilder builder;
  const SlotId in = builder.slot(Tier::host, 100, 50);
  const SlotId out = builder.slot(Tier::host, 100, 50);
  builder.program.slots[in].carry = Carry::in;
  builder.program.slots[out].carry = Carry::out;
  builder.op(OpKind::update, Lane::optimizer, {}, {builder.read(in)});
  builder.op(OpKind::update, Lane::optimizer, {}, {builder.write(out)});
  EXPECT_TRUE(overlaps(builder.program).empty());
  std::swap(builder.program.ops[0], builder.program.ops[1]);
  EXPECT_EQ(overlaps(builder.program).size(), 1u);
}

TEST(CheckDefined, WhatIsCarriedInIsThereAndWhatIsCarriedOutWasWritten) {
  StepProgram program = carried_in_the_middle(Carry::in);
  program.ops[1].accesses[0].mode = AccessMode::read;
  EXPECT_TRUE(undefined(program).empty());
  program.slots[1].carry = Carry::none;
  EXPECT_EQ(undefined(program).size(), 1u);
  program.slots[1].carry = Carry::in;
  program.slots[0].offset_bytes = 240;  // it was there
  EXPECT_EQ(undefined(program).size(), 1u);

  program = carried_in_the_middle(Carry::out);
  EXPECT_TRUE(undefined(program).empty());
  --program.ops[1].accesses[0].bytes;
  auto found = undefined(program);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].slot, 1u);
  EXPECT_EQ(found[0].op, kNone);
  EXPECT_THAT(found[0].text, testing::HasSubstr("bytes [49, 50) of slot 1"));
  EXPECT_THAT(found[0].text, testing::HasSubstr("are carried out, which nothing has written"));
  ++program.ops[1].accesses[0].bytes;
  program.slots[2].offset_bytes = 249;
  found = undefined(program);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].other, 2u);
  program.ops.clear();
  EXPECT_EQ(undefined(program).size(), 1u);
}

TEST(CheckDefined, WhatIsReadWasWrittenThroughTheSameSlot) {
  ProgramBuilder builder;
  const SlotId a = builder.slot(Tier::host, 0, 100);
  const SlotId b = builder.slot(Tier::host, 50, 100);
  const SlotId resident = builder.slot(Tier::host, 500, 100, true);
  builder.op(OpKind::update, Lane::optimizer, {}, {builder.write(a)});
  builder.op(OpKind::update, Lane::optimizer, {}, {builder.read(a), builder.read(resident)});
  EXPECT_TRUE(undefined(builder.program).empty());

  builder.op(OpKind::update, Lane::optimizer, {}, {builder.read(b)});
  auto found = undefined(builder.program);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].op, 2u);
  EXPECT_EQ(found[0].other, 0u);
  EXPECT_THAT(found[0].text, testing::HasSubstr("reads bytes [0, 50) of slot 1"));

  builder.program.ops[2].accesses = {builder.write(b)};
  builder.op(OpKind::update, Lane::optimizer, {}, {{a, AccessMode::read, Role::none, 0, 50}});
  EXPECT_TRUE(undefined(builder.program).empty());
  builder.program.ops[3].accesses[0].bytes = 51;
  found = undefined(builder.program);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].other, 2u);

  builder.program.ops[3].accesses[0] = builder.update(builder.slot(Tier::host, 300, 10));
  found = undefined(builder.program);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_THAT(found[0].text, testing::HasSubstr("nothing has written"));
  builder.program.ops[3].accesses[0].role = Role::workspace;
  EXPECT_TRUE(undefined(builder.program).empty());
}

TEST(PeakLiveBytes, CountsResidentsAndWhatIsBetweenFirstAndLastAccess) {
  ProgramBuilder builder;
  const SlotId a = builder.slot(Tier::host, 0, 10);
  const SlotId b = builder.slot(Tier::host, 10, 20);
  const SlotId c = builder.slot(Tier::host, 0, 10);
  builder.slot(Tier::host, 500, 1000, true);
  builder.slot(Tier::host, 2000, 77);
  EXPECT_EQ(peak_live_bytes(builder.program, Tier::host), 1000u);
  builder.op(OpKind::update, Lane::optimizer, {}, {builder.write(a)});
  builder.op(OpKind::update, Lane::optimizer, {}, {builder.write(b)});
  EXPECT_EQ(peak_live_bytes(builder.program, Tier::host), 1020u);
  builder.op(OpKind::update, Lane::optimizer, {}, {builder.read(a)});
  builder.op(OpKind::update, Lane::optimizer, {}, {builder.write(c)});
  EXPECT_EQ(peak_live_bytes(builder.program, Tier::host), 1030u);
  builder.program.ops[3].accesses.push_back(builder.read(b));
  EXPECT_EQ(peak_live_bytes(builder.program, Tier::host), 1030u);
  builder.program.ops[2].accesses.push_back(builder.write(c));
  EXPECT_EQ(peak_live_bytes(builder.program, Tier::host), 1040u);
  EXPECT_EQ(peak_live_bytes(builder.program, Tier::device), 0u);
}

TEST(PeakLiveBytes, CountsCarriedSlotsToTheirBorder) {
  ProgramBuilder builder;
  const SlotId in = builder.slot(Tier::host, 0, 10);
  const SlotId between = builder.slot(Tier::host, 100, 100);
  const SlotId out = builder.slot(Tier::host, 0, 20);
  builder.op(OpKind::update, Lane::optimizer, {}, {builder.write(between)});
  builder.op(OpKind::update, Lane::optimizer, {}, {builder.read(in)});
  builder.op(OpKind::update, Lane::optimizer, {}, {builder.write(out)});
  builder.op(OpKind::update, Lane::optimizer, {}, {});
  EXPECT_EQ(peak_live_bytes(builder.program, Tier::host), 100u);
  builder.program.slots[in].carry = Carry::in;
  EXPECT_EQ(peak_live_bytes(builder.program, Tier::host), 110u);
  builder.program.ops[0].accesses.clear();
  builder.program.ops[3].accesses = {builder.write(between)};
  EXPECT_EQ(peak_live_bytes(builder.program, Tier::host), 100u);
  builder.program.slots[out].carry = Carry::out;
  EXPECT_EQ(peak_live_bytes(builder.program, Tier::host), 120u);
  builder.program.ops.clear();
  EXPECT_EQ(peak_live_bytes(builder.program, Tier::host), 30u);  // one list is both borders
}

TEST(CheckProgram, AnOperationMustNotTouchAByteTwiceUnlessItOnlyReads) {
  CheckInput input;
  ProgramBuilder builder;
  const SlotId slot = builder.slot(Tier::host, 0, 100, true);
  builder.program.kind = ProgramKind::eval;
  const auto aliases = [&](Access x, Access y) {
    builder.program.ops.clear();
    builder.op(OpKind::grad_stats, Lane::optimizer, {}, {x, y});
    for (const Violation& violation : check_program(builder.program, input)) {
      if (violation.rule == Rule::form) return true;
    }
    return false;
  };
  const auto at = [&](AccessMode mode, std::uint64_t offset, std::uint64_t bytes) {
    return Access{slot, mode, Role::none, offset, bytes};
  };
  using enum AccessMode;
  EXPECT_FALSE(aliases(at(read, 0, 50), at(read, 20, 50)));
  EXPECT_FALSE(aliases(at(read, 0, 50), at(write, 50, 50)));
  EXPECT_TRUE(aliases(at(read, 0, 51), at(write, 50, 50)));
  EXPECT_TRUE(aliases(at(update, 0, 100), at(read, 99, 1)));
  EXPECT_TRUE(aliases(at(write, 10, 1), at(write, 10, 1)));
  EXPECT_FALSE(aliases(at(write, 10, 0), at(write, 10, 1)));
}

TEST(CheckProgram, ReportsNoMoreThanTheLimit) {
  ProgramBuilder builder;
  for (int i = 0; i < 500; ++i) builder.op(OpKind::forward, Lane::nvme);
  EXPECT_EQ(check_program(builder.program, CheckInput{}).size(), kMaxViolations);
}

TEST(CheckProgram, NamesOperationsAndSlotsInWords) {
  ProgramBuilder builder;
  const SlotId slot = builder.slot(Tier::host, 4096, 100, false, Item::state_chunk);
  builder.program.slots[slot].chunk = 3;
  Op op;
  op.kind = OpKind::fold;
  op.lane = Lane::optimizer;
  op.unit = 1;
  op.chunk = 3;
  op.micro_batch = 2;
  builder.add(op);
  EXPECT_EQ(describe_op(builder.program, 0), "operation 0 (fold of chunk 3, contribution 2 on optimizer)");
  EXPECT_EQ(describe_op(builder.program, 7), "operation 7 (not in the list)");
  EXPECT_EQ(describe_slot(builder.program, slot),
            "slot 0 (state_chunk of chunk 3 on host, bytes [4096, 4196))");
  EXPECT_EQ(describe_slot(builder.program, 9), "slot 9 (not in the table)");
}

}  // namespace
}  // namespace terrace
