// Whole programs of a tiny model: legal as written, refused after any single change that matters.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/plan/program_changes.h"
#include "tests/plan/tiny_variants.h"

namespace terrace {
namespace {

TEST(CheckProgram, AcceptsEveryTinyStep) {
  std::vector<TinyOptions> all = varied();
  for (const std::uint32_t units : {1u, 2u, 4u, 5u}) {
    TinyOptions options;
    options.units = units;
    options.kind = ProgramKind::train_commit;
    all.push_back(options);
    options.compact = false;
    all.push_back(options);
  }
  std::set<OpKind> kinds;
  for (const TinyOptions& options : all) {
    const TinyStep step = tiny_step(options);
    EXPECT_EQ(texts(check_program(step.program, step.input)), "") << words(options);
    for (const Op& op : step.program.ops) kinds.insert(op.kind);
  }
  EXPECT_EQ(kinds.size(),
            static_cast<std::size_t>(OpKind::commit) + 1 - 5);  // all but what several ranks do
}

TEST(CheckProgram, RefusesEveryDroppedWait) {
  int dropped = 0;
  for (const TinyOptions& options : varied()) {
    const TinyStep step = tiny_step(options);
    ASSERT_TRUE(redundant_waits(step.program).empty());
    for_each_dropped_wait(step.program, [&](const StepProgram& program, WaitOf wait) {
      ++dropped;
      EXPECT_FALSE(check_program(program, step.input).empty())
          << describe_op(program, wait.op) << " without its wait for " << describe_op(program, wait.wait);
    });
  }
  EXPECT_GT(dropped, 1000);
}

TEST(CheckProgram, RefusesEveryMissingOperation) {
  for (const TinyOptions& options : varied()) {
    const TinyStep step = tiny_step(options);
    for (OpId id = 0; id < step.program.ops.size(); ++id) {
      EXPECT_FALSE(check_program(without(step.program, id), step.input).empty())
          << words(options) << " without " << describe_op(step.program, id);
    }
  }
}

TEST(CheckProgram, RefusesOperationsThatAreRepeated) {
  for (const TinyOptions& options : varied()) {
    const TinyStep step = tiny_step(options);
    for (OpId id = 0; id < step.program.ops.size(); ++id) {
      const Op& op = step.program.ops[id];
      const bool to_home = op.accesses.size() == 2 && step.program.slots[op.accesses[1].slot].resident &&
                           step.program.slots[op.accesses[1].slot].item == Item::param_chunk;
      const bool once = op.kind == OpKind::forward || op.kind == OpKind::backward ||
                        op.kind == OpKind::fold || op.kind == OpKind::grad_stats ||
                        op.kind == OpKind::update || op.kind == OpKind::write_state ||
                        op.kind == OpKind::commit || op.kind == OpKind::cast_param ||
                        op.kind == OpKind::visit_state || to_home;
      if (!once) continue;
      TinyStep twice = step;
      twice.program.ops.insert(twice.program.ops.begin() + id + 1, op);
      derive_waits(twice.program);
      EXPECT_FALSE(check_program(twice.program, twice.input).empty())
          << words(options) << ": twice " << describe_op(step.program, id);
    }
  }
}

TEST(CheckProgram, RefusesEveryOperandOneByteShort) {
  for (const TinyOptions& options : varied()) {
    TinyStep step = tiny_step(options);
    for (OpId id = 0; id < step.program.ops.size(); ++id) {
      for (Access& access : step.program.ops[id].accesses) {
        --access.bytes;
        EXPECT_FALSE(check_program(step.program, step.input).empty())
            << words(options) << ": " << describe_op(step.program, id) << " on "
            << describe_slot(step.program, access.slot);
        ++access.bytes;
      }
    }
    ASSERT_TRUE(check_program(step.program, step.input).empty());
  }
}

TEST(CheckProgram, RefusesEveryOperandOfAnotherSlotOfItsKind) {
  int tried = 0;
  for (const TinyOptions& options : varied()) {
    if (options.contributions != 2 || options.kind == ProgramKind::train_commit)
      continue;  // many cases are enough
    TinyStep step = tiny_step(options);
    StepProgram& program = step.program;
    for (OpId id = 0; id < program.ops.size(); ++id) {
      for (std::size_t a = 0; a < program.ops[id].accesses.size(); ++a) {
        const SlotId right = program.ops[id].accesses[a].slot;
        const Item item = program.slots[right].item;
        if (item == Item::workspace) continue;
        for (SlotId other = 0; other < program.slots.size(); ++other) {
          const Slot& slot = program.slots[other];
          if (other == right || slot.item != item || slot.tier != program.slots[right].tier ||
              slot.bytes != program.slots[right].bytes) {
            continue;
          }
          // A piece gathered for another contribution may still be there, whole.
          if (item == Item::piece && slot.unit == program.slots[right].unit) continue;
          program.ops[id].accesses[a].slot = other;
          EXPECT_FALSE(check_program(program, step.input).empty())
              << words(options) << ": " << describe_op(program, id) << " on " << describe_slot(program, other)
              << " instead of " << describe_slot(program, right);
          ++tried;
        }
        program.ops[id].accesses[a].slot = right;
      }
    }
  }
  EXPECT_GT(tried, 500);
}

TEST(CheckProgram, RefusesEveryWrongLabelOfWhatIsComputed) {
  for (const TinyOptions& options : varied()) {
    TinyStep step = tiny_step(options);
    for (OpId id = 0; id < step.program.ops.size(); ++id) {
      Op& op = step.program.ops[id];
      const Op right = op;
      const auto expect_refused = [&] {
        EXPECT_FALSE(check_program(step.program, step.input).empty()) << describe_op(step.program, id);
        op = right;
      };
      if (op.kind == OpKind::forward || op.kind == OpKind::backward || op.kind == OpKind::recompute) {
        op.unit = (op.unit + 1) % options.units;
        expect_refused();
        op.micro_batch = op.micro_batch + 1;
        expect_refused();
      }
      if (op.kind == OpKind::fold || op.kind == OpKind::update || op.kind == OpKind::write_state ||
          op.kind == OpKind::cast_param || op.kind == OpKind::visit_state) {
        op.chunk = static_cast<std::uint32_t>((op.chunk + 1) % step.input.chunks.size());
        expect_refused();
      }
      if (op.kind == OpKind::fold) {
        op.micro_batch = op.micro_batch + 1;
        expect_refused();
      }
    }
  }
}

TEST(CheckProgram, RefusesPredicatesTheWrongWayRound) {
  int unpredicated = 0;
  int predicated = 0;
  for (const TinyOptions& options : varied()) {
    TinyStep step = tiny_step(options);
    for (auto op = step.program.ops.begin(); op != step.program.ops.end(); ++op) {
      // What is fetched for a pending update may be fetched when there is none.
      const bool fetches = op->kind == OpKind::read_state || op->kind == OpKind::read_gradient ||
                           op->kind == OpKind::copy_to_host;
      if (op->predicated && fetches) continue;
      (op->predicated ? predicated : unpredicated) += 1;
      op->predicated = !op->predicated;
      EXPECT_FALSE(check_program(step.program, step.input).empty())
          << words(options) << ": "
          << describe_op(step.program, static_cast<OpId>(op - step.program.ops.begin()));
      op->predicated = !op->predicated;
    }
  }
  EXPECT_GT(predicated, 100);
  EXPECT_GT(unpredicated, 500);
}

}  // namespace
}  // namespace terrace
