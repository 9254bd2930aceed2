// HappensBefore, redundant waits and the hazard rule against brute force over random small programs.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "src/plan/check_program.h"
#include "src/plan/happens_before.h"
#include "tests/plan/brute_force.h"
#include "tests/plan/program_builder.h"

namespace terrace {
namespace {

constexpr std::uint64_t kArenaBytes = 6;

class RandomProgram {
 public:
  explicit RandomProgram(std::uint32_t seed) : random_(seed) {}

  std::uint32_t below(std::uint32_t limit) {
    return std::uniform_int_distribution<std::uint32_t>(0, limit - 1)(random_);
  }

  // Operations on random lanes (nvme more often than others) that access random slots.
  ProgramBuilder accesses_only(std::uint32_t ops) {
    ProgramBuilder builder(kArenaBytes);
    const std::uint32_t slots = 1 + below(4);
    for (std::uint32_t i = 0; i < slots; ++i) {
      const std::uint64_t offset = below(kArenaBytes);
      builder.slot(static_cast<Tier>(below(2)), offset,
                   1 + below(static_cast<std::uint32_t>(kArenaBytes - offset)));
    }
    const std::uint32_t lanes = 1 + below(kLanes);
    for (std::uint32_t i = 0; i < ops; ++i) {
      Op op;
      op.lane = below(3) == 0 ? Lane::nvme : static_cast<Lane>(below(lanes));
      const std::uint32_t accesses = below(4);
      for (std::uint32_t a = 0; a < accesses; ++a) {
        Access access;
        access.slot = below(slots);
        access.mode = static_cast<AccessMode>(below(3));
        const auto bytes = static_cast<std::uint32_t>(builder.program.slots[access.slot].bytes);
        access.offset_bytes = below(bytes);
        access.bytes = 1 + below(bytes - static_cast<std::uint32_t>(access.offset_bytes));
        op.accesses.push_back(access);
      }
      builder.add(op);
    }
    return builder;
  }

  StepProgram with_random_waits(std::uint32_t ops) {
    StepProgram program = accesses_only(ops).program;
    for (OpId id = 1; id < program.ops.size(); ++id) {
      const std::uint32_t waits = below(3);
      for (std::uint32_t i = 0; i < waits; ++i) program.ops[id].waits.push_back(below(id));
    }
    return program;
  }

  // Every conflict is waited for, by one wait or through others; then perhaps one wait is dropped.
  StepProgram nearly_legal(std::uint32_t ops) {
    StepProgram program = accesses_only(ops).program;
    for (OpId b = 0; b < program.ops.size(); ++b) {
      for (OpId a = 0; a < b; ++a) {
        if (conflict(program, a, b)) program.ops[b].waits.push_back(a);
      }
    }
    for (const WaitOf& wait : redundant_waits(program)) std::erase(program.ops[wait.op].waits, wait.wait);
    std::vector<Op*> waiting;
    for (Op& op : program.ops) {
      if (!op.waits.empty()) waiting.push_back(&op);
    }
    if (!waiting.empty() && below(2) == 0) {
      auto& waits = waiting[below(static_cast<std::uint32_t>(waiting.size()))]->waits;
      waits.erase(waits.begin() + below(static_cast<std::uint32_t>(waits.size())));
    }
    return program;
  }

 private:
  static bool conflict(const StepProgram& program, OpId a, OpId b) {
    for (const Access& x : program.ops[a].accesses) {
      for (const Access& y : program.ops[b].accesses) {
        const Slot& s = program.slots[x.slot];
        const Slot& t = program.slots[y.slot];
        if (s.tier != t.tier || (x.mode == AccessMode::read && y.mode == AccessMode::read)) continue;
        const std::uint64_t i = s.offset_bytes + x.offset_bytes;
        const std::uint64_t j = t.offset_bytes + y.offset_bytes;
        if (i < j + y.bytes && j < i + x.bytes) return true;
      }
    }
    return false;
  }

  std::mt19937 random_;
};

std::string listing(const StepProgram& program) {
  std::string text;
  for (OpId id = 0; id < program.ops.size(); ++id) {
    const Op& op = program.ops[id];
    text += std::to_string(id) + " " + std::string(name_of(op.lane)) + " waits";
    for (const OpId wait : op.waits) text += " " + std::to_string(wait);
    for (const Access& access : op.accesses) {
      const Slot& slot = program.slots[access.slot];
      const std::uint64_t begin = slot.offset_bytes + access.offset_bytes;
      text += "; " + std::string("rwu").substr(static_cast<std::size_t>(access.mode), 1) + " " +
              std::string(name_of(slot.tier)) + " [" + std::to_string(begin) + ", " +
              std::to_string(begin + access.bytes) + ")";
    }
    text += "\n";
  }
  return text;
}

TEST(Exploration, AgreesWithEveryOrderOneByOne) {
  RandomProgram random(1);
  int several = 0;
  for (int i = 0; i < 400; ++i) {
    const StepProgram program = random.with_random_waits(1 + random.below(4));
    const Exploration fast = explore(program);
    const Exploration slow = explore_every_order(program);
    ASSERT_EQ(fast.one_outcome, slow.one_outcome) << listing(program);
    ASSERT_EQ(fast.deadlock, slow.deadlock) << listing(program);
    several += slow.one_outcome ? 0 : 1;
  }
  EXPECT_GT(several, 50);
  EXPECT_LT(several, 350);
}

TEST(HappensBefore, AgreesWithEnumeration) {
  RandomProgram random(2);
  int before = 0;
  int not_before = 0;
  for (int i = 0; i < 300; ++i) {
    const StepProgram program = random.with_random_waits(2 + random.below(6));
    const HappensBefore order(program);
    for (OpId b = 0; b < program.ops.size(); ++b) {
      for (OpId a = 0; a < b; ++a) {
        ASSERT_EQ(order.before(a, b), always_before(program, a, b)) << a << " " << b << "\n"
                                                                    << listing(program);
        (order.before(a, b) ? before : not_before) += 1;
      }
    }
  }
  EXPECT_GT(before, 500);
  EXPECT_GT(not_before, 500);
}

void compare(const StepProgram& program, int& legal, int& broken) {
  const bool clean = find_hazards(program).empty();
  const Exploration exploration = explore(program);
  ASSERT_EQ(clean, exploration.one_outcome) << listing(program);
  ASSERT_FALSE(exploration.deadlock) << listing(program);
  (clean ? legal : broken) += 1;
}

TEST(FindHazards, AgreesWithBruteForceOverRandomWaits) {
  RandomProgram random(3);
  int legal = 0;
  int broken = 0;
  for (int i = 0; i < 3000; ++i) {
    ASSERT_NO_FATAL_FAILURE(compare(random.with_random_waits(1 + random.below(7)), legal, broken));
  }
  EXPECT_GT(legal, 500);
  EXPECT_GT(broken, 500);
}

TEST(FindHazards, AgreesWithBruteForceNearTheBorderOfLegality) {
  RandomProgram random(4);
  int legal = 0;
  int broken = 0;
  for (int i = 0; i < 3000; ++i) {
    ASSERT_NO_FATAL_FAILURE(compare(random.nearly_legal(2 + random.below(7)), legal, broken));
  }
  EXPECT_GT(legal, 500);
  EXPECT_GT(broken, 500);
}

TEST(FindHazards, AgreesWithBruteForceOverLongerPrograms) {
  RandomProgram random(5);
  int legal = 0;
  int broken = 0;
  for (int i = 0; i < 60; ++i) {
    ASSERT_NO_FATAL_FAILURE(compare(random.nearly_legal(9 + random.below(3)), legal, broken));
  }
  EXPECT_GT(legal, 5);
  EXPECT_GT(broken, 5);
}

TEST(RedundantWaits, AreThoseWhoseRemovalChangesNoOrder) {
  RandomProgram random(6);
  int redundant = 0;
  int needed = 0;
  for (int i = 0; i < 500; ++i) {
    const StepProgram program = random.with_random_waits(2 + random.below(7));
    const std::vector<WaitOf> found = redundant_waits(program);
    for_each_dropped_wait(program, [&](const StepProgram& dropped, WaitOf wait) {
      const bool implied = HappensBefore(dropped).before(wait.wait, wait.op);
      // Of a wait listed twice only the second counts.
      const auto& waits = program.ops[wait.op].waits;
      if (std::count(waits.begin(), waits.end(), wait.wait) > 1) return;
      const bool reported = std::find(found.begin(), found.end(), wait) != found.end();
      EXPECT_EQ(reported, implied) << wait.op << " waits for " << wait.wait << "\n" << listing(program);
      (reported ? redundant : needed) += 1;
    });
  }
  EXPECT_GT(redundant, 200);
  EXPECT_GT(needed, 200);
}

TEST(RedundantWaits, KnowsThatNvmeStartsInOrderAndCompletesOutOfOrder) {
  ProgramBuilder builder;
  const OpId compute = builder.op(OpKind::forward, Lane::compute);
  const OpId first = builder.op(OpKind::read_param, Lane::nvme, {compute});
  const OpId second = builder.op(OpKind::read_param, Lane::nvme, {compute, first});
  const OpId twice = builder.op(OpKind::copy_to_device, Lane::h2d, {second, second});
  const OpId after = builder.op(OpKind::copy_to_device, Lane::h2d, {twice});
  const std::vector<WaitOf> expected{{second, compute}, {twice, second}, {after, twice}};
  EXPECT_EQ(redundant_waits(builder.program), expected);
}

TEST(ForEachDroppedWait, LeavesOutOneWaitAtATime) {
  ProgramBuilder builder;
  builder.op(OpKind::forward, Lane::compute);
  builder.op(OpKind::forward, Lane::compute);
  builder.op(OpKind::copy_to_host, Lane::d2h, {0, 1});
  builder.op(OpKind::copy_to_device, Lane::h2d, {2});
  std::vector<WaitOf> seen;
  for_each_dropped_wait(builder.program, [&](const StepProgram& program, WaitOf wait) {
    seen.push_back(wait);
    std::size_t waits = 0;
    for (const Op& op : program.ops) waits += op.waits.size();
    EXPECT_EQ(waits, 2u);
    EXPECT_EQ(std::count(program.ops[wait.op].waits.begin(), program.ops[wait.op].waits.end(), wait.wait), 0);
  });
  EXPECT_EQ(seen, (std::vector<WaitOf>{{2, 0}, {2, 1}, {3, 2}}));
}

TEST(FindHazards, NamesBothOperationsAndTheSlot) {
  ProgramBuilder builder;
  const SlotId slot = builder.slot(Tier::host, 0, 64);
  builder.op(OpKind::read_param, Lane::nvme, {}, {builder.write(slot)});
  builder.op(OpKind::copy_to_device, Lane::h2d, {}, {builder.read(slot)});
  const std::vector<Violation> found = find_hazards(builder.program);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rule, Rule::hazard);
  EXPECT_EQ(found[0].op, 1u);
  EXPECT_EQ(found[0].other, 0u);
  EXPECT_EQ(found[0].slot, slot);
  EXPECT_NE(found[0].text.find("operation 1 (copy_to_device on h2d) reads bytes of slot 0"),
            std::string::npos)
      << found[0].text;
  builder.program.ops[1].waits = {0};
  EXPECT_TRUE(find_hazards(builder.program).empty());
}

TEST(FindHazards, AdjacentRangesDoNotConflict) {
  ProgramBuilder builder;
  const SlotId slot = builder.slot(Tier::host, 0, 64);
  builder.op(OpKind::read_param, Lane::nvme, {}, {{slot, AccessMode::write, Role::none, 0, 32}});
  builder.op(OpKind::read_param, Lane::nvme, {}, {{slot, AccessMode::write, Role::none, 32, 32}});
  EXPECT_TRUE(find_hazards(builder.program).empty());
  builder.program.ops[1].accesses[0].offset_bytes = 31;
  EXPECT_EQ(find_hazards(builder.program).size(), 1u);
}

}  // namespace
}  // namespace terrace
