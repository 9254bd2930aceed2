#include "io/transfer_order.h"

#include <gtest/gtest.h>

#include <vector>

namespace terrace {
namespace {

IoTicket start(TransferOrder& order) {
  IoPriority priority{};
  return order.start(priority);
}

TEST(TransferOrder, EmptyGivesNothing) {
  TransferOrder order(4);
  EXPECT_TRUE(order.empty());
  EXPECT_EQ(start(order), 0u);
  order.remove(7);
  order.promote(7);
  EXPECT_EQ(start(order), 0u);
}

TEST(TransferOrder, ByClassThenBySubmission) {
  TransferOrder order(1);  // no share of a depth of one
  order.add(1, IoPriority::write_back);
  order.add(2, IoPriority::prefetch);
  order.add(3, IoPriority::prefetch);
  order.add(4, IoPriority::demand);
  std::vector<IoTicket> got;
  while (!order.empty()) {
    IoPriority priority{};
    got.push_back(order.start(priority));
    order.remove(got.back());
    order.ended(priority);
  }
  EXPECT_EQ(got, (std::vector<IoTicket>{4, 2, 3, 1}));
}

TEST(TransferOrder, PromotedPassesYoungerDemands) {
  TransferOrder order(1);
  order.add(1, IoPriority::prefetch);
  order.add(2, IoPriority::write_back);
  order.add(3, IoPriority::demand);
  order.promote(2);
  EXPECT_EQ(start(order), 2u);
  order.promote(2);  // again: no effect
  order.remove(2);
  EXPECT_EQ(start(order), 3u);
}

// Fills the depth with `top` and write backs without end; gives how many of each are then in flight.
std::pair<int, int> mix(std::uint32_t depth, IoPriority top) {
  TransferOrder order(depth);
  order.add(1, top);
  order.add(2, IoPriority::write_back);
  std::pair<int, int> count{0, 0};
  for (std::uint32_t i = 0; i < depth; ++i) ++(start(order) == 1 ? count.first : count.second);
  return count;
}

TEST(TransferOrder, WriteBacksKeepTheirShare) {
  EXPECT_EQ(mix(16, IoPriority::prefetch), (std::pair<int, int>{8, 8}));
  EXPECT_EQ(mix(16, IoPriority::demand), (std::pair<int, int>{12, 4}));
  EXPECT_EQ(mix(2, IoPriority::prefetch), (std::pair<int, int>{1, 1}));
  EXPECT_EQ(mix(3, IoPriority::demand), (std::pair<int, int>{3, 0}));
  EXPECT_EQ(mix(1, IoPriority::prefetch), (std::pair<int, int>{1, 0}));
}

TEST(TransferOrder, AnIdleDiskStartsWithTheDemand) {
  TransferOrder order(16);
  order.add(1, IoPriority::write_back);
  order.add(2, IoPriority::prefetch);
  order.add(3, IoPriority::demand);
  EXPECT_EQ(start(order), 3u);
}

TEST(TransferOrder, NoClassWaitsForEver) {
  TransferOrder order(1);
  order.add(1, IoPriority::demand);
  order.add(2, IoPriority::prefetch);
  order.add(3, IoPriority::write_back);
  std::vector<int> seen(4);
  for (int i = 0; i < 1000; ++i) {
    IoPriority priority{};
    ++seen[order.start(priority)];
    order.ended(priority);
  }
  EXPECT_GE(seen[2], 20);
  EXPECT_GE(seen[3], 20);
  EXPECT_GE(seen[1], 900);  // and the demand passes nearly always
}

}  // namespace
}  // namespace terrace
