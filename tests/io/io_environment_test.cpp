// What the queues do where the system gives little: no io_uring, small limits, a full file system.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <functional>
#include <sstream>
#include <vector>

#include <spdlog/sinks/ostream_sink.h>

#include "io/data_file.h"
#include "io/io_probe.h"
#include "io/scratch.h"
#include "src/base/log.h"
#include "src/base/units.h"
#include "tests/support/child.h"
#include "tests/support/io_fixture.h"
#include "tests/support/temp_dir.h"

namespace terrace {
namespace {

using testing::HasSubstr;

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// As a container's filter does.
void refuse_io_uring(int error) {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (static_cast<unsigned>(error) & SECCOMP_RET_DATA)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program{static_cast<unsigned short>(std::size(code)), code};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

void limit(int resource, rlim_t value) {
  const rlimit both{value, value};
  ASSERT_EQ(::setrlimit(static_cast<__rlimit_resource>(resource), &both), 0);
}

bool may_lock(std::uint64_t bytes) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (::syscall(SYS_capget, &header, data) == 0 && (data[0].effective & (1u << CAP_IPC_LOCK)) != 0)
    return true;
  rlimit memlock{};
  return ::getrlimit(RLIMIT_MEMLOCK, &memlock) == 0 && memlock.rlim_cur >= bytes;
}

class IoEnvironment : public testing::Test {
 protected:
  void SetUp() override { ::unsetenv("TERRACE_IO"); }
  void TearDown() override { ::unsetenv("TERRACE_IO"); }

  // Scratch over the queue works: out and back.
  void expect_works(IoQueue& queue) {
    const VolumePath paths[] = {{folder_.path(), kMiB}};
    Scratch scratch(queue, paths, std::vector<std::uint64_t>{100'000});
    AlignedMemory out(128 * kKiB, "a test"), back(128 * kKiB, "a test");
    const std::span<std::byte> buffers[] = {out.span(), back.span()};
    queue.register_buffers(buffers);
    fill_random(out.data(), 100'000, 1);
    Awaited written, read_back;
    scratch.write(0, out.span().first(100'000), IoPriority::write_back, written.done());
    written.wait();
    scratch.read(0, back.span().first(100'000), IoPriority::demand, read_back.done());
    read_back.wait();
    EXPECT_TRUE(std::equal(out.data(), out.data() + 100'000, back.data()));
  }

  TempDir folder_;
};

TEST_F(IoEnvironment, WhereIoUringIsRefusedThreadsAreUsedAndItIsSaidOnce) {
  for (const int error : {EPERM, ENOSYS}) {
    const std::string log = in_child([&] {
      refuse_io_uring(error);
      EXPECT_FALSE(probe_io_uring().available);
      EXPECT_THAT(probe_io_uring().detail, HasSubstr("io_uring_setup: "));
      for (int i = 0; i < 3; ++i) {
        const auto queue = make_io_queue({});
        EXPECT_EQ(queue->name(), "threads");
        expect_works(*queue);
      }
      EXPECT_THAT(error_of([] { make_uring_queue({}); }), HasSubstr("unsupported: io_uring_setup: "));
      ::setenv("TERRACE_IO", "uring", 1);
      EXPECT_THAT(error_of([] { make_io_queue({}); }), HasSubstr("unsupported: io_uring_setup: "));
    });
    EXPECT_EQ(count_of(log, "I/O by threads, without io_uring: io_uring_setup: "), 1u) << log;
    EXPECT_THAT(log, HasSubstr(error == EPERM ? "Operation not permitted (a container's seccomp filter"
                                              : "this kernel has no io_uring"));
  }
}

TEST_F(IoEnvironment, TheVariableForcesAQueue) {
  ::setenv("TERRACE_IO", "threads", 1);
  EXPECT_EQ(make_io_queue({})->name(), "threads");
  ::setenv("TERRACE_IO", "thread", 1);
  EXPECT_EQ(error_of([] { make_io_queue({}); }),
            "invalid argument: TERRACE_IO: wanted uring or threads, got 'thread'");
  if (!probe_io_uring().available) GTEST_SKIP() << probe_io_uring().detail;
  ::setenv("TERRACE_IO", "uring", 1);
  EXPECT_EQ(make_io_queue({})->name(), "io_uring");
  ::unsetenv("TERRACE_IO");
  EXPECT_EQ(make_io_queue({})->name(), "io_uring");
}

TEST_F(IoEnvironment, ASmallLockLimitRunsUnregisteredAndSaysSo) {
  if (!probe_io_uring().available) GTEST_SKIP() << probe_io_uring().detail;
  const std::string log = in_child([&] {
    drop_page_lock_right();
    limit(RLIMIT_MEMLOCK, 64 * kKiB);
    const auto queue = make_uring_queue({});
    AlignedMemory memory(8 * kMiB, "a test");
    const std::span<std::byte> buffers[] = {memory.span()};
    EXPECT_FALSE(queue->register_buffers(buffers));
    expect_works(*queue);
  });
  EXPECT_THAT(
      log,
      HasSubstr("io_uring: 8 MiB of I/O buffers cannot be registered: Cannot allocate memory (ulimit -l is "
                "64 KiB); transfers run unregistered"));
}

// The kernel takes at most 1 GiB a buffer; a piece across the border of two belongs to neither.
TEST_F(IoEnvironment, ALargeRegionIsRegisteredInParts) {
  if (!probe_io_uring().available) GTEST_SKIP() << probe_io_uring().detail;
  if (!may_lock(2 * kGiB)) GTEST_SKIP() << "the lock limit is small";
  // The same 8 MiB over and over: an address range of more than 1 GiB that costs little memory.
  const std::uint64_t window = 8 * kMiB, total = kGiB + window;
  const int shared = ::memfd_create("window", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(shared, static_cast<off_t>(window)), 0);
  void* range = ::mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(range, MAP_FAILED);
  auto* const begin = static_cast<std::byte*>(range);
  for (std::uint64_t at = 0; at < total; at += window) {
    ASSERT_NE(::mmap(begin + at, window, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, shared, 0),
              MAP_FAILED);
  }
  ::close(shared);
  auto queue = make_uring_queue({});
  const std::span<std::byte> buffers[] = {{begin, total}};
  ASSERT_TRUE(queue->register_buffers(buffers));
  const DataFile file(folder_.path(), DataFile::Mode::temporary);
  const IoFile id = queue->register_file(file.fd(), file.path());
  std::byte* across = begin + kGiB - 2 * kMiB - 4096;
  fill_random(across, 4 * kMiB, 1);
  write(*queue, id, 0, across, 4 * kMiB);
  std::vector<std::byte> kept(across, across + 4 * kMiB);
  std::fill_n(across, 4 * kMiB, std::byte{0});
  read(*queue, id, 0, across, 4 * kMiB);
  EXPECT_TRUE(std::equal(kept.begin(), kept.end(), across));
  queue.reset();
  ::munmap(range, total);
}

TEST_F(IoEnvironment, FewDescriptorsAreEnough) {
  const std::string log = in_child([&] {
    limit(RLIMIT_NOFILE, 64);
    for (int i = 0; i < 200; ++i) {
      const auto queue = make_io_queue({});
      if (i % 50 == 0) expect_works(*queue);
    }
  });
  EXPECT_THAT(log, testing::Not(HasSubstr("without io_uring: Too many")));
}

TEST_F(IoEnvironment, NoDescriptorForARingIsNoEnd) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer needs descriptors of its own";
#endif
  if (!probe_io_uring().available) GTEST_SKIP() << probe_io_uring().detail;
  const std::string log = in_child([&] {
    const DataFile file(folder_.path(), DataFile::Mode::temporary);
    limit(RLIMIT_NOFILE, static_cast<rlim_t>(file.fd()) + 1);
    const auto queue = make_io_queue({});
    EXPECT_EQ(queue->name(), "threads");
    AlignedMemory memory(4096, "a test");
    write(*queue, queue->register_file(file.fd(), file.path()), 0, memory.data(), 4096);
  });
  EXPECT_THAT(log, HasSubstr("without io_uring: io_uring_setup: Too many open files (ulimit -n)"));
}

TEST_F(IoEnvironment, AFullFileSystemIsRefusedInWords) {
  const std::string log = in_child([&] {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", folder_.path().c_str(), "tmpfs", 0, "size=256k") != 0) {
      GTEST_SKIP() << "cannot mount a file system here: " << std::strerror(errno);
    }
    {
      DataFile file(folder_.path(), DataFile::Mode::temporary);
      const std::string error = error_of([&] { file.allocate(kMiB); });
      EXPECT_THAT(error, HasSubstr("does not fit: " + folder_.path() +
                                   ": no room for 1 MiB (1048576 bytes); 256 KiB "
                                   "(262144 bytes) are free"));
      EXPECT_EQ(file.size_bytes(), 0u);
    }
    for (const auto make : {&make_uring_queue, &make_thread_pool_queue}) {
      if (make == &make_uring_queue && !probe_io_uring().available) continue;
      const OpenFile file(folder_.file("data"), O_RDWR | O_CREAT | O_TRUNC);
      const auto queue = make({.depth = 2, .piece_bytes = 64 * kKiB});
      AlignedMemory memory(kMiB, "a test");
      EXPECT_THAT(
          error_of(
              [&] { write(*queue, queue->register_file(file.fd(), file.path()), 0, memory.data(), kMiB); }),
          testing::AllOf(HasSubstr("I/O failed: write of " + file.path() + " at offset "),
                         HasSubstr("wanted 65536 bytes, got "), HasSubstr("No space left on device")));
    }
  });
  if (log == "skipped") GTEST_SKIP() << "cannot mount a file system here";
}

}  // namespace
}  // namespace terrace
