// The arenas of a run: locked, in huge pages, registered for I/O; and in words where the system refuses.
#include "src/memory/arenas.h"

#include <gmock/gmock.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "io/data_file.h"
#include "io/io_probe.h"
#include "src/base/process_memory.h"
#include "src/base/units.h"
#include "src/device/host_device.h"
#include "tests/support/child.h"
#include "tests/support/io_fixture.h"
#include "tests/support/temp_dir.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kHostBytes = 8 * kMiB;

std::uint64_t available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::uint64_t kilobytes = 0;
  for (std::string rest; file >> name >> kilobytes; std::getline(file, rest)) {
    if (name == "MemAvailable:") return kilobytes * kKiB;
  }
  return 0;
}

// What this user's other processes registered counts too, for some time after they have ended: tries for 5 s.
std::unique_ptr<IoQueue> queue_when_there_is_room() {
  for (int tries = 0;; ++tries) {
    try {
      return make_uring_queue({});
    } catch (const Error&) {
      if (tries == 500) throw;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

// Writes to and reads from every part of an arena: both of a run's ways to use it.
void expect_usable(const Arenas& arenas) {
  for (const Tier tier : {Tier::device, Tier::host}) {
    const AlignedMemory& region = tier == Tier::device ? arenas.device() : arenas.host();
    ASSERT_EQ(arenas.data(tier), region.data());
    for (std::size_t at = 0; at < region.size(); at += 4096)
      region.data()[at] = static_cast<std::byte>(at >> 12);
    for (std::size_t at = 0; at < region.size(); at += 4096)
      ASSERT_EQ(region.data()[at], static_cast<std::byte>(at >> 12));
  }
}

TEST(Arenas, TakeWhatThePlanSaysAndLockTheHost) {
  const auto device = make_host_device(false);
  const std::uint64_t before = process_memory().locked_bytes;
  const Arenas arenas(*device, 12 * kMiB, kHostBytes);
  expect_usable(arenas);
  EXPECT_EQ(arenas.device().size(), 12 * kMiB);
  EXPECT_EQ(arenas.host().size(), kHostBytes);
  if (kSanitized) return;
  EXPECT_EQ(process_memory().locked_bytes - before, arenas.locked_bytes());
  if (!arenas.host().locked()) GTEST_SKIP() << "the lock limit is small";
  EXPECT_EQ(arenas.locked_bytes(), kHostBytes);
}

TEST(Arenas, NothingToHoldIsNothingToSay) {
  const std::string log = in_child([] {
    limit_locked_memory(0);
    drop_page_lock_right();
    ASSERT_EQ(::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
    const auto device = make_host_device(false);
    const Arenas arenas(*device, 4096, 0);
    EXPECT_EQ(arenas.locked_bytes(), 0u);
  });
  EXPECT_EQ(log, "");
}

TEST(Arenas, WithoutHugePagesTheySayWhoSwitchedThemOff) {
  const std::string log = in_child([] {
    ASSERT_EQ(::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
    const auto device = make_host_device(false);
    const Arenas arenas(*device, 12 * kMiB, kHostBytes);
    expect_usable(arenas);
  });
  EXPECT_EQ(count_of(log, "no huge pages for the host region (8 MiB)"), 1u) << log;
  EXPECT_THAT(log, testing::AnyOf(HasSubstr("PR_SET_THP_DISABLE"), HasSubstr("is never"),
                                  HasSubstr("no transparent huge pages")));
}

TEST(Arenas, WhereLockingIsRefusedTheySayWhatWouldAllowIt) {
  if (kSanitized) GTEST_SKIP() << "mlock does nothing under a sanitizer";
  for (const std::uint64_t limit : {std::uint64_t{0}, std::uint64_t{64 * kKiB}}) {
    const std::string log = in_child([limit] {
      limit_locked_memory(limit);
      drop_page_lock_right();
      const auto device = make_host_device(false);
      const Arenas arenas(*device, 12 * kMiB, kHostBytes);
      EXPECT_EQ(arenas.locked_bytes(), 0u);
      EXPECT_EQ(process_memory().locked_bytes, 0u);
      expect_usable(arenas);
    });
    EXPECT_EQ(count_of(log, "is not page-locked: raise `ulimit -l` to at least 9216 KiB"), 1u) << log;
  }
}

TEST(Arenas, ALimitForAPartLocksThatPart) {
  if (kSanitized) GTEST_SKIP() << "mlock does nothing under a sanitizer";
  const std::string log = in_child([] {
    limit_locked_memory(6 * kMiB);
    drop_page_lock_right();
    const auto device = make_host_device(false);
    const Arenas arenas(*device, 0, 20 * kMiB);
    EXPECT_EQ(arenas.locked_bytes(), 4 * kMiB);
    expect_usable(arenas);
  });
  EXPECT_THAT(log, HasSubstr("the host region of 20 MiB is not page-locked beyond its first 4 MiB: raise "
                             "`ulimit -l` to at least 21504 KiB"));
}

// A page counts once: what is locked counts for the process, what is registered for its user.
TEST(Arenas, ALimitOfTheRegionsSizeIsEnoughToLockAndToRegister) {
  if (kSanitized) GTEST_SKIP() << "mlock does nothing under a sanitizer";
  if (!probe_io_uring().available) GTEST_SKIP() << probe_io_uring().detail;
  if (::geteuid() != 0) GTEST_SKIP() << "what else this user has registered counts too";
  static constexpr std::uint64_t kRegionBytes = 7 * kMiB;
  const std::string log = in_child([] {
    limit_locked_memory(kRegionBytes + kMiB);
    drop_page_lock_right();
    const auto device = make_host_device(false);
    const Arenas arenas(*device, 0, kRegionBytes);
    EXPECT_EQ(arenas.locked_bytes(), kRegionBytes);
    const std::uint64_t resident = process_memory().resident_bytes();
    const auto queue = queue_when_there_is_room();
    const std::array<std::span<std::byte>, 1> buffers{arenas.host().span()};
    bool registered = queue->register_buffers(buffers);
    for (int tries = 0; !registered && tries < 500; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      registered = queue->register_buffers(buffers);
    }
    EXPECT_TRUE(registered);
    const ProcessMemory memory = process_memory();
    EXPECT_EQ(memory.pinned_bytes, kRegionBytes);
    EXPECT_EQ(memory.locked_bytes, kRegionBytes);
    EXPECT_LT(memory.resident_bytes(), resident + 2 * kMiB) << "registered pages are anonymous pages";
  });
  EXPECT_EQ(count_of(log, "page-locked"), 0u) << log;
}

TEST(Arenas, WhereRegisteringIsRefusedTheQueueSaysWhatWouldAllowIt) {
  if (!probe_io_uring().available) GTEST_SKIP() << probe_io_uring().detail;
  const std::string log = in_child([] {
    limit_locked_memory(2 * kMiB);
    drop_page_lock_right();
    const AlignedMemory memory(kHostBytes, "a test");
    const auto queue = queue_when_there_is_room();
    const std::array<std::span<std::byte>, 1> buffers{memory.span()};
    EXPECT_FALSE(queue->register_buffers(buffers));
    EXPECT_EQ(process_memory().pinned_bytes, 0u);
  });
  EXPECT_EQ(count_of(log, "transfers run unregistered"), 1u) << log;
  EXPECT_THAT(log, HasSubstr("`ulimit -l` of 9216 KiB allows it"));
}

// The kernel takes at most 1 GiB a buffer: a region of 2.5 GiB becomes three, and what crosses a border of
// two still arrives.
TEST(Arenas, ARegionAboveOneGibibyteIsLockedAndRegisteredWhole) {
  constexpr std::uint64_t kLargeBytes = 5 * kGiB / 2;
  if (kSanitized) GTEST_SKIP() << "mlock does nothing under a sanitizer";
  if (!probe_io_uring().available) GTEST_SKIP() << probe_io_uring().detail;
  if (available_bytes() < 3 * kLargeBytes)
    GTEST_SKIP() << "wanted " << format_bytes(3 * kLargeBytes) << " free";
  const auto device = make_host_device(false);
  const Arenas arenas(*device, 0, kLargeBytes);
  if (!arenas.host().locked()) GTEST_SKIP() << "the lock limit is small";
  EXPECT_EQ(process_memory().locked_bytes, kLargeBytes);
  const auto queue = make_uring_queue({});
  const std::array<std::span<std::byte>, 1> buffers{arenas.host().span()};
  ASSERT_TRUE(queue->register_buffers(buffers));
  EXPECT_EQ(process_memory().pinned_bytes, kLargeBytes);
  const TempDir folder;
  const DataFile file(folder.path(), DataFile::Mode::temporary);
  const IoFile id = queue->register_file(file.fd(), file.path());
  // Around each border: pieces before it, one across it, one that ends and one that starts at it.
  for (std::uint64_t border : {kGiB, 2 * kGiB}) {
    for (const std::uint64_t before : {std::uint64_t{4096}, kMiB, 3 * kMiB / 2, 4 * kMiB, std::uint64_t{0}}) {
      SCOPED_TRACE(testing::Message() << border << " - " << before);
      std::byte* const data = arenas.data(Tier::host) + border - before;
      constexpr std::uint64_t kBytes = 4 * kMiB;
      fill_random(data, kBytes, border + before);
      const std::vector<std::byte> kept(data, data + kBytes);
      write(*queue, id, 0, data, kBytes);
      std::fill_n(data, kBytes, std::byte{0});
      read(*queue, id, 0, data, kBytes);
      EXPECT_TRUE(std::equal(kept.begin(), kept.end(), data));
    }
  }
}

}  // namespace
}  // namespace terrace
