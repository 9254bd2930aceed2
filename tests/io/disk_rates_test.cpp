#include "io/disk_rates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <optional>

#include "io/raw_uring_loop.h"
#include "src/base/fail.h"
#include "tests/support/temp_dir.h"

namespace terrace {
namespace {

using testing::HasSubstr;

ErrorCode code_of(const std::vector<std::string>& folders, const DiskProbeOptions& options,
                  std::string* words) {
  try {
    measure_disk(folders, options);
  } catch (const Error& error) {
    *words = error.what();
    return error.code();
  }
  ADD_FAILURE() << "nothing was thrown";
  return ErrorCode::internal;
}

void expect_rates(const DiskRates& rates) {
  EXPECT_GT(rates.read_gbps, 0);
  EXPECT_GT(rates.write_gbps, 0);
  EXPECT_GT(rates.both_gbps, 0);
}

TEST(DiskRates, MeasuresAFolderAndLeavesNothing) {
  const TempDir folder;
  const DiskRates rates = measure_disk({folder.path()}, {.bytes = 16 * kMiB});
  expect_rates(rates);
  EXPECT_THAT(rates.method, HasSubstr("depth 8, on 16 MiB"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(DiskRates, ThreadsDoTheSame) {
  const TempDir folder;
  const DiskRates rates = measure_disk({folder.path()}, {.bytes = 16 * kMiB, .uring = false});
  expect_rates(rates);
  EXPECT_THAT(rates.method, HasSubstr("threads"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(DiskRates, FoldersAreMeasuredTogether) {
  const TempDir first, second;
  for (const bool uring : {true, false}) {
    const DiskRates rates =
        measure_disk({first.path(), second.path()}, {.bytes = kLeastDiskProbeBytes, .uring = uring});
    expect_rates(rates);
    EXPECT_THAT(rates.method, HasSubstr("in each folder"));
  }
}

TEST(DiskRates, RefusesByPath) {
  const TempDir folder;
  std::string words;
  EXPECT_EQ(code_of({}, {}, &words), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of({folder.path()}, {.bytes = kLeastDiskProbeBytes - 1}, &words),
            ErrorCode::invalid_argument);
  EXPECT_THAT(words, HasSubstr("at least 8 MiB"));
  const std::string missing = folder.file("missing");
  EXPECT_EQ(code_of({folder.path(), missing}, {.bytes = kLeastDiskProbeBytes}, &words), ErrorCode::not_found);
  EXPECT_THAT(words, HasSubstr(missing));
  EXPECT_EQ(code_of({folder.path()}, {.bytes = std::uint64_t{1} << 55}, &words), ErrorCode::does_not_fit);
  EXPECT_THAT(words, HasSubstr(folder.path()));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

class RawUringLoopTest : public testing::Test {
 protected:
  RawUringLoopTest() {
    file_.allocate(8 * kMiB);
    std::memset(memory_.data(), 0, memory_.size());
    try {
      loop_.emplace(file_, memory_, 2);
    } catch (const Error& error) {
      why_ = error.what();
    }
  }
  void SetUp() override {
    if (!loop_) GTEST_SKIP() << why_;
  }

  // Byte k of the file is the number of its MiB.
  void number() {
    for (std::uint64_t i = 0; i < 8; ++i) {
      std::memset(memory_.data(), static_cast<int>(i + 1), kMiB);
      ASSERT_EQ(::pwrite(file_.fd(), memory_.data(), kMiB, static_cast<off_t>(i * kMiB)),
                static_cast<ssize_t>(kMiB));
    }
  }
  int first_byte_of(std::uint64_t mib) {
    EXPECT_EQ(::pread(file_.fd(), other_.data(), kMiB, static_cast<off_t>(mib * kMiB)),
              static_cast<ssize_t>(kMiB));
    EXPECT_EQ(other_.data()[0], other_.data()[kMiB - 1]);
    return static_cast<int>(other_.data()[0]);
  }

  TempDir folder_;
  DataFile file_{folder_.path(), DataFile::Mode::temporary};
  AlignedMemory memory_{4 * kMiB, "test"};
  AlignedMemory other_{kMiB, "test"};
  std::optional<RawUringLoop> loop_;
  std::string why_;
};

TEST_F(RawUringLoopTest, ReadsFromTheBeginAndWritesFromItsOffset) {
  number();
  std::memset(memory_.data(), 0, 2 * kMiB);
  std::memset(memory_.data() + 2 * kMiB, 77, 2 * kMiB);
  loop_->run({true, true}, 2 * kMiB, 5 * kMiB);
  EXPECT_EQ(static_cast<int>(memory_.data()[0]), 1);
  EXPECT_EQ(static_cast<int>(memory_.data()[2 * kMiB - 1]), 2);
  const int wanted[] = {1, 2, 3, 4, 5, 77, 77, 8};
  for (std::uint64_t i = 0; i < 8; ++i) EXPECT_EQ(first_byte_of(i), wanted[i]) << i;
}

TEST_F(RawUringLoopTest, MovesAllOfALongFile) {
  number();
  loop_->run({true, false}, 8 * kMiB, 0);
  EXPECT_EQ(static_cast<int>(memory_.data()[0]), 7);  // the buffers take turns
  EXPECT_EQ(static_cast<int>(memory_.data()[kMiB]), 8);
  loop_->run({false, true}, 8 * kMiB, 0);
  EXPECT_EQ(first_byte_of(7), first_byte_of(1));
}

TEST_F(RawUringLoopTest, AShortFileIsAnError) {
  try {
    loop_->run({true, false}, 16 * kMiB, 0);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io_failed);
    EXPECT_THAT(error.what(), HasSubstr(folder_.path()));
    EXPECT_THAT(error.what(), HasSubstr("got 0"));
  }
  loop_->run({true, false}, 8 * kMiB, 0);  // nothing is left under way
}

}  // namespace
}  // namespace terrace
