// What the kernel says a process holds: each page once, page-locked or not.
#include "src/base/process_memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

#include "src/base/units.h"
#include "tests/support/child.h"
#include "tests/support/temp_dir.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kRegionBytes = 32 * kMiB;
constexpr std::uint64_t kNoise = 2 * kMiB;  // of the counters, and of what the test itself does

// Memory of the kind that `flags` say, unmapped in the destructor.
class Mapping {
 public:
  explicit Mapping(int flags)
      : data_(static_cast<char*>(::mmap(nullptr, kRegionBytes, PROT_READ | PROT_WRITE, flags, -1, 0))) {}
  ~Mapping() { ::munmap(data_, kRegionBytes); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  char* data() const { return data_; }
  void touch() const { std::memset(data_, 1, kRegionBytes); }

 private:
  char* data_;
};

TEST(ProcessMemory, CountsAnonymousPagesWhenTheyAreTouched) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer keeps shadows of memory";
  const Mapping mapping(MAP_PRIVATE | MAP_ANONYMOUS);
  const ProcessMemory before = process_memory();
  EXPECT_GT(before.anonymous_bytes, 0u);
  EXPECT_EQ(before.threads, 1u);
  mapping.touch();
  const ProcessMemory after = process_memory();
  EXPECT_NEAR(static_cast<double>(after.anonymous_bytes - before.anonymous_bytes), kRegionBytes, kNoise);
  EXPECT_EQ(after.locked_bytes, before.locked_bytes);
}

TEST(ProcessMemory, CountsALockedPageOnce) {
  if (kSanitized) GTEST_SKIP() << "mlock does nothing under a sanitizer";
  const Mapping mapping(MAP_PRIVATE | MAP_ANONYMOUS);
  mapping.touch();
  const ProcessMemory before = process_memory();
  if (::mlock(mapping.data(), kRegionBytes) != 0) GTEST_SKIP() << "the lock limit is small";
  const ProcessMemory after = process_memory();
  EXPECT_EQ(after.locked_bytes - before.locked_bytes, kRegionBytes);
  EXPECT_NEAR(static_cast<double>(after.resident_bytes()), static_cast<double>(before.resident_bytes()),
              kNoise);
}

TEST(ProcessMemory, CountsSharedMemory) {
  const Mapping mapping(MAP_SHARED | MAP_ANONYMOUS);
  const ProcessMemory before = process_memory();
  mapping.touch();
  const ProcessMemory after = process_memory();
  EXPECT_NEAR(static_cast<double>(after.shared_bytes - before.shared_bytes), kRegionBytes, kNoise);
  EXPECT_GE(after.resident_bytes() + kNoise, before.resident_bytes() + kRegionBytes);
}

// The kernel drops a file's pages when it needs room.
TEST(ProcessMemory, DoesNotCountPagesOfFiles) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer keeps shadows of memory";
  const TempDir folder;
  const std::string path = folder.path() + "/file";
  std::ofstream(path) << std::string(kRegionBytes, 'x');
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(file, 0);
  void* const data = ::mmap(nullptr, kRegionBytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0);
  ASSERT_NE(data, MAP_FAILED);
  const ProcessMemory before = process_memory();
  EXPECT_EQ(std::count(static_cast<char*>(data), static_cast<char*>(data) + kRegionBytes, 'x'), kRegionBytes);
  EXPECT_LT(process_memory().resident_bytes(), before.resident_bytes() + kNoise);
  EXPECT_LT(before.resident_bytes(), kRegionBytes) << "a small program";
  ::munmap(data, kRegionBytes);
  ::close(file);
}

TEST(ProcessMemory, ThePeakStaysWhenMemoryGoes) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer keeps shadows of memory";
  PeakMemory peak;
  peak.sample();
  const std::uint64_t first = peak.peak().resident_bytes();
  {
    const Mapping mapping(MAP_PRIVATE | MAP_ANONYMOUS);
    mapping.touch();
    peak.sample();
  }
  const std::uint64_t most = peak.peak().resident_bytes();
  EXPECT_NEAR(static_cast<double>(most - first), kRegionBytes, kNoise);
  peak.sample();
  EXPECT_EQ(peak.peak().resident_bytes(), most);
  EXPECT_LT(process_memory().resident_bytes() + kRegionBytes / 2, most);
  std::thread([&] { peak.sample(); }).join();
  EXPECT_GE(peak.peak().threads, 2u);
}

TEST(ProcessMemory, AHeapThatWasFreedGoesBack) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's heap";
  std::vector<std::vector<char>> blocks;
  const std::uint64_t before = process_memory().anonymous_bytes;
  for (int i = 0; i < 3000; ++i) blocks.emplace_back(10000, 'x');
  const std::vector<char> last(10000, 'x');  // holds the end of the heap
  const std::uint64_t full = process_memory().anonymous_bytes;
  EXPECT_GT(full, before + 25 * kMiB);
  blocks.clear();
  trim_heap();
  EXPECT_LT(process_memory().anonymous_bytes, before + 3 * kMiB);
}

TEST(HugePageSupport, SaysWhoSwitchedThemOff) {
  in_child([] {
    ASSERT_EQ(::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
    const HugePageSupport support = huge_page_support();
    EXPECT_FALSE(support.advised);
    EXPECT_FALSE(support.always);
    EXPECT_THAT(support.why, testing::AnyOf(HasSubstr("PR_SET_THP_DISABLE"), HasSubstr("is never"),
                                            HasSubstr("no transparent huge pages")));
  });
}

TEST(HugePageSupport, AProcessThatAllowsThemToThoseWhoAskHasThem) {
  if (!huge_page_support().advised) GTEST_SKIP() << huge_page_support().why;
  in_child([] {
    if (::prctl(PR_SET_THP_DISABLE, 1, 2, 0, 0) != 0) return;  // before Linux 6.18
    EXPECT_TRUE(huge_page_support().advised);
    EXPECT_FALSE(huge_page_support().always);
  });
}

}  // namespace
}  // namespace terrace
