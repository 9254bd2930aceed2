// Regions in huge pages: what they take, how they are locked, and what is left where the system refuses.
#include "src/base/aligned_memory.h"

#include <gmock/gmock.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstring>

#include "src/base/process_memory.h"
#include "src/base/units.h"
#include "tests/support/child.h"

namespace terrace {
namespace {

bool all_zero(const AlignedMemory& memory) {
  const auto bytes = memory.span();
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; });
}

TEST(AlignedMemoryRegion, TakesNoMoreThanItSays) {
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{4096}, std::size_t{4097}, kHugePageBytes - 1, kHugePageBytes,
        kHugePageBytes + 1, kHugeTailBytes - 4096, kHugeTailBytes - 1, kHugeTailBytes, kHugeTailBytes + 1,
        9 * kHugePageBytes + 4096}) {
    SCOPED_TRACE(bytes);
    AlignedMemory memory(bytes, "a test");
    EXPECT_EQ(memory.size(), round_up(bytes, 4096));
    EXPECT_EQ(memory.mapped_bytes(), AlignedMemory::mapped_bytes_of(bytes));
    EXPECT_GE(memory.mapped_bytes(), memory.size());
    EXPECT_LT(memory.mapped_bytes(), memory.size() + (bytes < kHugeTailBytes ? 4096 : kHugePageBytes));
    const std::uint64_t before = process_memory().anonymous_bytes;
    std::memset(memory.data(), 1, memory.size());
    const std::uint64_t taken = process_memory().anonymous_bytes - before;
    if (kSanitized) continue;
    EXPECT_LE(taken, memory.mapped_bytes() + kMiB);
    EXPECT_GE(taken + kMiB, memory.size());
  }
}

TEST(AlignedMemoryRegion, AnEmptyOneIsLockedAndHoldsNothing) {
  AlignedMemory memory(0, "a test");
  EXPECT_EQ(memory.data(), nullptr);
  EXPECT_EQ(memory.lock(), 0);
  EXPECT_TRUE(memory.locked());
  EXPECT_EQ(memory.huge_bytes(), 0u);
}

// More than one of the pieces in which a region is touched and locked, and not a whole number of them.
TEST(AlignedMemoryRegion, IsLockedPieceByPiece) {
  if (kSanitized) GTEST_SKIP() << "mlock does nothing under a sanitizer";
  const std::uint64_t before = process_memory().locked_bytes;
  {
    AlignedMemory memory(200 * kMiB + 4096, "a test");
    if (memory.lock() != 0) GTEST_SKIP() << "the lock limit is small";
    EXPECT_TRUE(memory.locked());
    EXPECT_EQ(memory.locked_bytes(), memory.size());
    EXPECT_EQ(process_memory().locked_bytes - before, memory.size());
    EXPECT_TRUE(all_zero(memory));
    AlignedMemory moved = std::move(memory);
    EXPECT_TRUE(moved.locked());
  }
  EXPECT_EQ(process_memory().locked_bytes, before);
}

TEST(AlignedMemoryRegion, IsLockedAsFarAsTheLimitGoes) {
  if (kSanitized) GTEST_SKIP() << "mlock does nothing under a sanitizer";
  for (const std::uint64_t limit : {std::uint64_t{0}, std::uint64_t{6 * kMiB}}) {
    in_child([limit] {
      limit_locked_memory(limit);
      drop_page_lock_right();
      AlignedMemory memory(200 * kMiB, "a test");
      EXPECT_NE(memory.lock(), 0);
      EXPECT_FALSE(memory.locked());
      EXPECT_LE(memory.locked_bytes(), limit);
      EXPECT_EQ(memory.locked_bytes() > 0, limit > 0);
      EXPECT_EQ(process_memory().locked_bytes, memory.locked_bytes());
      EXPECT_TRUE(all_zero(memory));
      std::memset(memory.data(), 1, memory.size());
    });
  }
}

TEST(AlignedMemoryRegion, LiesInHugePages) {
  if (kSanitized) GTEST_SKIP() << "mappings under a sanitizer";
  if (!huge_page_support().advised) GTEST_SKIP() << huge_page_support().why;
  AlignedMemory memory(64 * kMiB, "a test");
  EXPECT_TRUE(memory.huge());
  EXPECT_EQ(memory.huge_bytes(), 0u);
  std::memset(memory.data(), 1, memory.size());
  if (memory.huge_bytes() < memory.size()) GTEST_SKIP() << "memory is fragmented";
  EXPECT_EQ(memory.huge_bytes(), memory.size());
}

TEST(AlignedMemoryRegion, WorksWithoutHugePagesAndKnowsIt) {
  in_child([] {
    ASSERT_EQ(::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
    AlignedMemory memory(16 * kMiB, "a test");
    EXPECT_FALSE(memory.huge());
    std::memset(memory.data(), 1, memory.size());
    EXPECT_EQ(memory.huge_bytes(), 0u);
    EXPECT_TRUE(AlignedMemory(kMiB, "a test").huge()) << "a small region lacks nothing";
  });
}

}  // namespace
}  // namespace terrace
