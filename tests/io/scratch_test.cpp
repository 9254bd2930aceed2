#include "io/scratch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "io/data_file.h"
#include "src/base/units.h"
#include "tests/support/faulty_queue.h"
#include "tests/support/io_fixture.h"
#include "tests/support/temp_dir.h"

namespace terrace {
namespace {

using testing::HasSubstr;

const IoQueueOptions kOptions{.depth = 8, .piece_bytes = 16 * kKiB};

template <typename Begin>
void await(Begin&& begin) {
  Awaited ended;
  begin(ended.done());
  ended.wait();
}

class ScratchTest : public testing::Test {
 protected:
  void put(Scratch& scratch, std::size_t extent, std::uint64_t bytes, std::uint64_t seed) {
    fill_random(memory_.data(), bytes, seed);
    await([&](auto done) { scratch.write(extent, {memory_.data(), bytes}, IoPriority::write_back, done); });
  }
  void get(Scratch& scratch, std::size_t extent, std::uint64_t bytes) {
    std::fill_n(other_.data(), bytes, std::byte{0});
    await([&](auto done) { scratch.read(extent, {other_.data(), bytes}, IoPriority::demand, done); });
  }
  bool same(std::uint64_t bytes, std::uint64_t seed) {
    fill_random(memory_.data(), bytes, seed);
    return std::equal(memory_.data(), memory_.data() + bytes, other_.data());
  }

  TempDir folder_, second_;
  AlignedMemory memory_{kMiB, "a test"};
  AlignedMemory other_{kMiB, "a test"};
};

TEST_F(ScratchTest, EverySizeComesBackFromEveryPath) {
  const auto queue = make_io_queue(kOptions);
  const VolumePath paths[] = {{folder_.path(), 8 * kMiB}, {second_.path(), 8 * kMiB}};
  std::vector<std::uint64_t> sizes;
  for (const std::int64_t around : {0, 4096, 8192, 12288, 16384, 32768}) {
    for (const std::int64_t d : {-4, -1, 0, 1, 2}) {
      if (around + d >= 0) sizes.push_back(static_cast<std::uint64_t>(around + d));
    }
  }
  Scratch scratch(*queue, paths, sizes);
  ASSERT_EQ(scratch.extents(), sizes.size());
  for (int round = 0; round < 2; ++round) {  // an overwrite too
    for (std::size_t e = 0; e < sizes.size(); ++e) put(scratch, e, sizes[e], 100 * round + e);
    for (std::size_t e = 0; e < sizes.size(); ++e) {
      EXPECT_EQ(scratch.extent_bytes(e), round_up(sizes[e], 4096));
      get(scratch, e, sizes[e]);
      EXPECT_TRUE(same(sizes[e], 100 * round + e)) << sizes[e];
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  EXPECT_TRUE(std::filesystem::is_empty(second_.path()));
}

TEST_F(ScratchTest, MisuseIsOurOwnError) {
  const auto queue = make_thread_pool_queue(kOptions);
  const VolumePath paths[] = {{folder_.path(), 0}};
  Scratch scratch(*queue, paths, std::vector<std::uint64_t>{5000, 5000});
  EXPECT_THAT(error_of([&] { get(scratch, 0, 5000); }),
              HasSubstr("internal: scratch extent 0 is read before"));
  put(scratch, 0, 5000, 1);
  EXPECT_THAT(error_of([&] { get(scratch, 0, 4999); }), HasSubstr("5000 bytes were written, 4999 are read"));
  EXPECT_THAT(error_of([&] { put(scratch, 1, 8193, 1); }),
              HasSubstr("8193 bytes for scratch extent 1 of 8192"));
  EXPECT_THAT(error_of([&] { put(scratch, 2, 1, 1); }), HasSubstr("scratch extent 2 of 2"));
}

TEST_F(ScratchTest, WhatDoesNotFitIsRefusedInWordsAndLeavesNothing) {
  const auto queue = make_thread_pool_queue(kOptions);
  const VolumePath small[] = {{folder_.path(), kMiB}};
  EXPECT_THAT(error_of([&] {
                Scratch(*queue, small, std::vector<std::uint64_t>{kMiB, 1});
              }),
              HasSubstr("does not fit: 2 extents of 1052672 bytes in all"));
  const std::uint64_t much = free_bytes(folder_.path()) + 64 * kGiB;
  const VolumePath full[] = {{folder_.path(), much}};
  EXPECT_THAT(error_of([&] { Scratch(*queue, full, std::vector<std::uint64_t>{much}); }),
              HasSubstr(folder_.path() + ": no room for"));
  const VolumePath missing[] = {{folder_.file("none"), kMiB}};
  EXPECT_THAT(error_of([&] { Scratch(*queue, missing, std::vector<std::uint64_t>{1}); }),
              HasSubstr("not found: scratch path " + folder_.file("none")));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(ScratchTest, PathsWithoutABudgetShareWhatIsFree) {
  const auto queue = make_thread_pool_queue(kOptions);
  const VolumePath paths[] = {{folder_.path(), 0}, {second_.path(), 0}};
  Scratch scratch(*queue, paths, std::vector<std::uint64_t>(10, kMiB / 2));
  for (std::size_t e = 0; e < 10; ++e) put(scratch, e, kMiB / 2, e);
  for (std::size_t e = 0; e < 10; ++e) {
    get(scratch, e, kMiB / 2);
    EXPECT_TRUE(same(kMiB / 2, e));
  }
}

TEST_F(ScratchTest, AFlippedBitIsFound) {
  for (const auto make : {&make_thread_pool_queue, &make_io_queue}) {
    FaultyQueue queue(make, kOptions, {.fail_write_at = 0, .flip_read_at = 3});
    const VolumePath paths[] = {{folder_.path(), kMiB}};
    Scratch scratch(queue, paths, std::vector<std::uint64_t>{100'000});
    put(scratch, 0, 98304, 7);  // whole pieces: every byte read is part of the data
    EXPECT_THAT(error_of([&] { get(scratch, 0, 98304); }),
                testing::AllOf(HasSubstr("scratch extent 0, 98304 bytes at offset 0: wanted checksum "),
                               HasSubstr(folder_.path())));
    EXPECT_EQ(queue.counts().flipped, 1u);
    get(scratch, 0, 98304);  // it was in the transfer only
    EXPECT_TRUE(same(98304, 7));
  }
}

}  // namespace
}  // namespace terrace
