// A disk that is full can stop a run only before its first step, in words, and leaves nothing behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <cstring>
#include <filesystem>

#include "terrace/store.h"
#include "tests/e2e/program.h"

namespace terrace::e2e {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

// A file system of a stated size, in a mount namespace of this process alone; gone with it.
class SmallDisk {
 public:
  SmallDisk(const std::string& path, std::uint64_t bytes) {
    fs::create_directories(path);
    path_ = fs::canonical(path);
    const std::string options = "size=" + std::to_string(bytes);
    const bool own =
        ::unshare(CLONE_NEWNS) == 0 && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
    mounted_ = own && ::mount("none", path.c_str(), "tmpfs", 0, options.c_str()) == 0;
    if (!mounted_) why_ = std::strerror(errno);
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  const std::string& why() const { return why_; }  // empty: it is there
  const std::string& path() const { return path_; }
  std::uint64_t free_bytes() const {
    struct statvfs status {};
    ::statvfs(path_.c_str(), &status);
    return std::uint64_t{status.f_bavail} * status.f_frsize;
  }

 private:
  std::string path_, why_;
  bool mounted_ = false;
};

class FullDiskTest : public testing::Test {
 protected:
  // Of `folder` and what is below it, without what the program's output goes to.
  static std::vector<std::string> names(const std::string& folder) {
    std::vector<std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) all.push_back(entry.path());
    return all;
  }

  Workspace workspace_;
  TrainProgram program_{workspace_.path()};
};

TEST_F(FullDiskTest, ATooSmallDiskIsRefusedAndLeftEmpty) {
  const Record whole = run(small_in_memory(workspace_));
  const SmallDisk disk(workspace_.path() + "/disk", 8 << 20);
  if (!disk.why().empty()) GTEST_SKIP() << "cannot mount a file system here: " << disk.why();
  Config config = small_on_disk(workspace_);
  config.placement.parameters = config.placement.gradients = config.placement.activations = shares(0, 0, 1);
  const std::string nvme = disk.path() + "/nvme";
  fs::create_directories(nvme);
  config.store.path = disk.path() + "/store";
  const std::string filler = disk.path() + "/filler";
  const std::uint64_t room = disk.free_bytes();
  bool fitted = false;
  // From nothing to all that is needed; with a size that is not there, and without one.
  for (std::uint64_t free = 0; free <= room && !fitted; free += 256 << 10) {
    for (const std::uint64_t size : {std::uint64_t{128} << 20, std::uint64_t{0}}) {
      SCOPED_TRACE(testing::Message() << free << " bytes free, tiers.nvme size " << size);
      std::FILE* file = std::fopen(filler.c_str(), "w");
      const std::vector<char> zeros(room - free);
      ASSERT_EQ(std::fwrite(zeros.data(), 1, zeros.size(), file), zeros.size());
      ASSERT_EQ(std::fclose(file), 0);
      config.tiers.nvme = {{nvme, size}};
      const Outcome outcome = program_.run(config, false);
      const std::vector<std::string> left = names(disk.path());
      if (outcome.code == 0) {
        fitted = true;
        EXPECT_GT(free, 0u);
        EXPECT_EQ(record_of_metrics(program_.metrics_path()), whole);
        EXPECT_TRUE(verify_store(config.store.path).whole());
        fs::remove_all(config.store.path);
        for (const auto& entry : fs::directory_iterator(nvme)) fs::remove_all(entry.path());
      } else {
        EXPECT_EQ(outcome.code, 1) << outcome;
        EXPECT_THAT(outcome.err, HasSubstr("error: "));
        EXPECT_THAT(outcome.err, AnyOf(HasSubstr(disk.path()), HasSubstr("tiers.nvme")));
        EXPECT_THAT(outcome.err, HasSubstr(" bytes")) << "wanted and free";
        EXPECT_EQ(outcome.out, "");
        EXPECT_FALSE(fs::exists(program_.metrics_path()));
        EXPECT_THAT(left, testing::UnorderedElementsAre(nvme, filler));
      }
      fs::remove(filler);
      fs::remove(program_.metrics_path());
      // The kernel lets go of a ring's files a moment after the program's end.
      EXPECT_TRUE(wait_until([&] { return disk.free_bytes() == room; }))
          << disk.free_bytes() << " of " << room;
    }
  }
  EXPECT_TRUE(fitted);
}

// The budgets that a refusal states are enough for the run itself, its store included.
TEST_F(FullDiskTest, TheLeastNvmeBudgetIsEnoughForTheRun) {
  const Record whole = run(small_in_memory(workspace_));
  Config config = small_on_disk(workspace_);
  config.placement.parameters = shares(0, 0, 1);
  config.tiers.nvme[0].size_bytes = 4096;
  const Outcome refused = program_.run(config, false);
  EXPECT_EQ(refused.code, 1);
  ASSERT_TRUE(bytes_of(refused.err, "tiers.nvme")) << refused.err;
  const std::uint64_t least = *bytes_of(refused.err, "tiers.nvme");
  config.tiers.nvme[0].size_bytes = least;
  const Outcome outcome = program_.run(config, false);
  ASSERT_EQ(outcome.code, 0) << outcome;
  EXPECT_EQ(record_of_metrics(program_.metrics_path()), whole);
  // And it keeps to it.
  std::uint64_t held = 0;
  for (const auto& entry : fs::directory_iterator(config.tiers.nvme[0].path))
    held += fs::file_size(entry.path());
  EXPECT_LE(held, least);
  Config smaller = small_on_disk(workspace_);
  smaller.placement.parameters = shares(0, 0, 1);
  smaller.tiers.nvme[0].size_bytes = least - 1;
  EXPECT_EQ(program_.run(smaller, false).code, 1);
  EXPECT_FALSE(fs::exists(smaller.store.path));
}

// A path's size bounds what store and scratch put on it together.
TEST_F(FullDiskTest, EachPathKeepsToItsSize) {
  Config in_memory = small_in_memory(workspace_), config = small_on_disk(workspace_);
  in_memory.train.micro_batch = config.train.micro_batch = 64;
  const Record whole = run(in_memory);
  config.placement.parameters = config.placement.gradients = config.placement.activations = shares(0, 0, 1);
  const SmallDisk disk(workspace_.path() + "/disk", 64 << 20);
  if (!disk.why().empty()) GTEST_SKIP() << "cannot mount a file system here: " << disk.why();
  const std::string small_path = disk.path() + "/nvme";
  fs::create_directories(small_path);
  const std::uint64_t room = disk.free_bytes(), size = 960 << 10;
  config.tiers.nvme[0].size_bytes = 4 << 20;
  config.tiers.nvme.push_back({small_path, size});
  TrainOptions options;
  std::uint64_t most = 0;
  options.on_step = [&](const StepReport&) { most = std::max(most, room - disk.free_bytes()); };
  EXPECT_EQ(train(config, options).state_hash, whole.hash);
  EXPECT_GT(most, 0u);
  EXPECT_LE(most, size);
}

// The one file that grows while a run goes on is not the store's: its disk is full, and nothing is lost.
TEST_F(FullDiskTest, MetricsThatFindNoRoomEndInWords) {
  const Record whole = run(small_in_memory(workspace_));
  const SmallDisk disk(workspace_.path() + "/disk", 4096);
  if (!disk.why().empty()) GTEST_SKIP() << "cannot mount a file system here: " << disk.why();
  Config config = small_on_disk(workspace_);
  config.commit.every_steps = 1;
  const std::string file = write_config(workspace_.path(), config), metrics = disk.path() + "/metrics.jsonl";
  const Outcome outcome = run_program(workspace_.path(), {"train", file, "--metrics", metrics});
  ASSERT_EQ(outcome.code, 1) << outcome;
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("error: "), HasSubstr(metrics), HasSubstr("No space left on device")));
  // With room it goes on, in a copy of what was told.
  fs::copy_file(metrics, program_.metrics_path());
  const Outcome resumed = program_.run(config, true);
  ASSERT_EQ(resumed.code, 0) << resumed;
  EXPECT_EQ(record_of_metrics(program_.metrics_path()), whole);
}

// A limit on the size of files is met when they are made.
TEST_F(FullDiskTest, ALimitOnFileSizesEndsInWords) {
  const Record whole = run(small_in_memory(workspace_));
  bool fitted = false;
  for (const std::uint64_t kibibytes : {0, 1, 4, 64, 1024, 65536}) {
    SCOPED_TRACE(kibibytes);
    Config config = small_on_disk(workspace_);
    config.placement.parameters = shares(0, 0, 1);
    // The program's own output and metrics are files too.
    const Outcome outcome = program_.run(config, false, [&] { limit(RLIMIT_FSIZE, kibibytes << 10); });
    fitted = outcome.code == 0;
    if (fitted) {
      EXPECT_EQ(record_of_metrics(program_.metrics_path()), whole);
    } else {
      EXPECT_EQ(outcome.code, 1) << outcome;
      EXPECT_TRUE(kibibytes == 0 || outcome.err.find("error: ") != std::string::npos) << outcome;
      EXPECT_FALSE(fs::exists(config.store.path));
      EXPECT_TRUE(fs::is_empty(config.tiers.nvme[0].path));
    }
    fs::remove(program_.metrics_path());
  }
  EXPECT_TRUE(fitted);
}

}  // namespace
}  // namespace terrace::e2e
