#include "src/plan/data_flow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/plan/program_builder.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Access part(SlotId slot, AccessMode mode, std::uint64_t begin, std::uint64_t end) {
  return {slot, mode, Role::none, begin, end - begin};
}

TEST(DataFlow, AReaderUsesTheLastWritersOfItsBytes) {
  ProgramBuilder b;
  const SlotId piece = b.slot(Tier::device, 0, 120);
  const OpId first = b.op(OpKind::copy_to_device, Lane::h2d, {}, {part(piece, AccessMode::write, 0, 60)});
  const OpId second = b.op(OpKind::copy_to_device, Lane::h2d, {}, {part(piece, AccessMode::write, 50, 100)});
  const OpId inside = b.op(OpKind::copy_to_device, Lane::h2d, {}, {part(piece, AccessMode::write, 10, 20)});
  const OpId whole = b.op(OpKind::forward, Lane::compute, {}, {b.read(piece)});
  const OpId begin = b.op(OpKind::forward, Lane::compute, {}, {part(piece, AccessMode::read, 0, 10)});
  const OpId border = b.op(OpKind::forward, Lane::compute, {}, {part(piece, AccessMode::read, 20, 50)});
  const OpId end = b.op(OpKind::forward, Lane::compute, {}, {part(piece, AccessMode::read, 50, 60)});
  const OpId behind = b.op(OpKind::forward, Lane::compute, {}, {part(piece, AccessMode::read, 55, 110)});
  const DataFlow flow = data_flow(b.program);
  EXPECT_THAT(flow[behind], ElementsAre(second));
  EXPECT_THAT(flow[first], IsEmpty());
  EXPECT_THAT(flow[whole], ElementsAre(first, second, inside));
  EXPECT_THAT(flow[begin], ElementsAre(first));
  EXPECT_THAT(flow[border], ElementsAre(first));
  EXPECT_THAT(flow[end], ElementsAre(second));
  EXPECT_THAT(reversed(flow)[first], ElementsAre(whole, begin, border));
}

TEST(DataFlow, AnUpdateUsesWhatItChangesAndIsUsedInItsPlace) {
  ProgramBuilder b;
  const SlotId sum = b.slot(Tier::host, 0, 8);
  const OpId made = b.op(OpKind::fold, Lane::optimizer, {}, {b.write(sum)});
  const OpId added = b.op(OpKind::fold, Lane::optimizer, {}, {b.update(sum)});
  const OpId used = b.op(OpKind::write_gradient, Lane::nvme, {}, {b.read(sum)});
  const DataFlow flow = data_flow(b.program);
  EXPECT_THAT(flow[added], ElementsAre(made));
  EXPECT_THAT(flow[used], ElementsAre(added));
}

// Two slots at one place: that the second waits for the first is an order, not a use.
TEST(DataFlow, ThePlaceOfASlotIsNoUse) {
  ProgramBuilder b;
  const SlotId first = b.slot(Tier::host, 0, 8), second = b.slot(Tier::host, 0, 8);
  b.op(OpKind::read_state, Lane::nvme, {}, {b.write(first)});
  const OpId out = b.op(OpKind::write_state, Lane::nvme, {}, {b.read(first)});
  const OpId in = b.op(OpKind::read_state, Lane::nvme, {out}, {b.write(second)});
  EXPECT_THAT(data_flow(b.program)[in], IsEmpty());
}

TEST(DataFlow, MarksEachThatIsReachedOnce) {
  const DataFlow flow{{}, {0}, {0, 1}, {2}, {}};
  std::vector<bool> marked(flow.size());
  std::vector<OpId> reached;
  mark_reached(flow, 2, marked, [&](OpId id) { reached.push_back(id); });
  EXPECT_THAT(reached, testing::UnorderedElementsAre(0u, 1u, 2u));
  reached.clear();
  mark_reached(flow, 3, marked, [&](OpId id) { reached.push_back(id); });
  EXPECT_THAT(reached, ElementsAre(3u));
}

}  // namespace
}  // namespace terrace
