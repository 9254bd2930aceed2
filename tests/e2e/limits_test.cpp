// Where the system gives little: the same numbers, or words that say what is needed.
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <filesystem>

#include "tests/e2e/program.h"

namespace terrace::e2e {
namespace {

using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

constexpr uid_t kNobody = 65534;

void become_nobody() {
  if (::setgroups(0, nullptr) != 0 || ::setgid(kNobody) != 0 || ::setuid(kNobody) != 0) ::_exit(126);
}

class LimitsTest : public testing::Test {
 protected:
  LimitsTest() {
    config_ = small_on_disk(workspace_);
    config_.placement.parameters = config_.placement.activations = shares(0, 0, 1);
    whole_ = run(small_in_memory(workspace_));
  }

  void give_to_nobody(const std::string& path) const {
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
      ASSERT_EQ(::chown(entry.path().c_str(), kNobody, kNobody), 0) << entry;
    }
    ASSERT_EQ(::chown(path.c_str(), kNobody, kNobody), 0) << path;
  }

  // The run works under `prepare`, and a resume of half of it too; gives what it logged.
  std::string expect_works(const std::function<void()>& prepare) {
    const Outcome outcome = program_.run(config_, false, prepare);
    EXPECT_EQ(outcome.code, 0) << outcome;
    EXPECT_EQ(record_of_metrics(program_.metrics_path()), whole_);
    const Outcome resumed = program_.run(config_, true, prepare);
    EXPECT_EQ(resumed.code, 0) << resumed;
    EXPECT_THAT(resumed.out, HasSubstr("state " + whole_.hash));
    return outcome.err;
  }

  Workspace workspace_;
  TrainProgram program_{workspace_.path()};
  Config config_;
  Record whole_;
};

TEST_F(LimitsTest, SixtyFourDescriptors) {
  expect_works([] { limit(RLIMIT_NOFILE, 64); });
  config_ = small_on_disk(workspace_);
  config_.io.queue = "threads";
  expect_works([] { limit(RLIMIT_NOFILE, 64); });
}

TEST_F(LimitsTest, SixtyFourKibibytesOfLockedMemory) {
  const auto prepare = [] {
    limit(RLIMIT_MEMLOCK, 64 << 10);
    drop_page_lock_right();
  };
  if (::geteuid() != 0) GTEST_SKIP() << "the right to lock memory is dropped by root";
  const std::string log = expect_works(prepare);
  EXPECT_TRUE(kSanitized ||
              log.find("is not page-locked: raise `ulimit -l` to at least ") != std::string::npos)
      << log;
  if (log.find("I/O by io_uring") != std::string::npos) {
    EXPECT_THAT(log, HasSubstr("ulimit -l is 64 KiB"));
  }
}

TEST_F(LimitsTest, IoUringRefused) {
  const std::string log = expect_works(refuse_io_uring);
  EXPECT_THAT(log, HasSubstr("I/O by threads, without io_uring: "));
  EXPECT_THAT(log, HasSubstr("seccomp"));
  EXPECT_EQ(log.find("without io_uring"), log.rfind("without io_uring")) << "said once";
  config_ = small_on_disk(workspace_);
  config_.io.queue = "uring";
  const Outcome outcome = program_.run(config_, false, refuse_io_uring);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("error: io_uring_setup: Operation not permitted"));
  EXPECT_FALSE(fs::exists(config_.store.path));
}

TEST_F(LimitsTest, AMemoryFileSystemWithoutDirectIo) {
  struct statfs status {};
  constexpr long kTmpfs = 0x01021994;
  if (::statfs("/dev/shm", &status) != 0 || status.f_type != kTmpfs) GTEST_SKIP() << "/dev/shm is no tmpfs";
  const TempDir memory("/dev/shm");
  config_.store.path = memory.path() + "/store";
  config_.tiers.nvme[0].path = memory.path() + "/nvme";
  fs::create_directories(config_.tiers.nvme[0].path);
  expect_works({});
  // Split over a file system of either kind.
  const Config on_disk = small_on_disk(workspace_);
  config_.store.path = on_disk.store.path;
  config_.tiers.nvme.push_back(on_disk.tiers.nvme[0]);
  expect_works({});
}

TEST_F(LimitsTest, AUserWithAllOfThem) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  give_to_nobody(workspace_.path());
  const auto prepare = [] {
    limit(RLIMIT_NOFILE, 64);
    limit(RLIMIT_MEMLOCK, 64 << 10);
    become_nobody();
  };
  const std::string log = expect_works(prepare);
  EXPECT_TRUE(kSanitized || log.find("is not page-locked") != std::string::npos) << log;
  config_ = small_on_disk(workspace_);
  give_to_nobody(workspace_.path());
  expect_works([&] {
    prepare();
    refuse_io_uring();
  });
}

TEST_F(LimitsTest, AFolderThatMayNotBeWritten) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  give_to_nobody(workspace_.path());
  const std::string nvme = config_.tiers.nvme[0].path;
  ASSERT_EQ(::chown(nvme.c_str(), 0, 0), 0);
  const Outcome outcome = program_.run(config_, false, become_nobody);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err,
              testing::AllOf(HasSubstr("error: "), HasSubstr(nvme), HasSubstr("Permission denied")));
  EXPECT_FALSE(fs::exists(config_.store.path)) << "nothing half made";
  EXPECT_TRUE(fs::is_empty(nvme));
}

// Little address space: an error in words, or a run; never a crash.
TEST_F(LimitsTest, LittleMemoryEndsInWords) {
  if (kSanitized) GTEST_SKIP() << "sanitizers reserve address space";
  config_.tiers.host_bytes = std::uint64_t{64} << 30;
  config_.placement.optimizer_state = shares(0, 1, 0);
  bool worked = false;
  for (const std::uint64_t mebibytes : {60, 120, 200, 300, 400, 600, 900, 4096}) {
    SCOPED_TRACE(mebibytes);
    fs::remove_all(config_.store.path);
    const Outcome outcome = program_.run(config_, false, [&] { limit(RLIMIT_AS, mebibytes << 20); });
    worked = outcome.code == 0;
    if (outcome.code == 127) continue;  // the libraries could not be loaded
    EXPECT_TRUE(outcome.code == 0 || outcome.code == 1) << outcome;
    EXPECT_TRUE(outcome.code == 0 || outcome.err.find("error: ") != std::string::npos) << outcome;
  }
  EXPECT_TRUE(worked);
}

}  // namespace
}  // namespace terrace::e2e
