#include "terrace/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "src/doctor/machine.h"
#include "tests/support/temp_dir.h"

namespace terrace {
namespace {

using testing::HasSubstr;

TEST(Doctor, MeminfoInBytes) {
  const std::string text = "MemTotal:       24689832 kB\nMemFree:  1 kB\nHugePages_Total:       0\n";
  EXPECT_EQ(meminfo_bytes(text, "MemTotal"), 24689832ull * 1024);
  EXPECT_EQ(meminfo_bytes(text, "MemFree"), 1024u);
  EXPECT_EQ(meminfo_bytes(text, "Mem"), std::nullopt);
  EXPECT_EQ(meminfo_bytes("", "MemTotal"), std::nullopt);
}

TEST(Doctor, MountIsTheDeepestAndTheLatest) {
  const std::string mounts =
      "overlay / overlay rw 0 0\n"
      "/dev/sda1 /data ext4 rw 0 0\n"
      "tmpfs /data/fast tmpfs rw 0 0\n"
      "/dev/sdb1 /data/fast xfs rw 0 0\n";
  EXPECT_EQ(mount_of(mounts, "/"), "overlay on overlay");
  EXPECT_EQ(mount_of(mounts, "/database"), "overlay on overlay");
  EXPECT_EQ(mount_of(mounts, "/data"), "ext4 on /dev/sda1");
  EXPECT_EQ(mount_of(mounts, "/data/x"), "ext4 on /dev/sda1");
  EXPECT_EQ(mount_of(mounts, "/data/fast/y"), "xfs on /dev/sdb1");
  EXPECT_EQ(mount_of("", "/"), "unknown");
}

TEST(Doctor, PathFactsClimbToWhatExists) {
  const TempDir folder;
  const std::string there = std::filesystem::canonical(folder.path()).string();
  EXPECT_EQ(path_facts(folder.path()).existing, there);
  EXPECT_EQ(path_facts(folder.file("a/b/c")).existing, there);
  EXPECT_GT(path_facts(folder.path()).free_bytes, 0u);
  EXPECT_NE(path_facts(folder.path()).file_system, "unknown");
}

TEST(Doctor, ReportHasEveryPartAligned) {
  const TempDir folder;
  const std::string report = doctor_report({folder.path(), folder.file("none")});
  for (const char* part :
       {"processor", "SIMD target", "matrix products", "CUDA", "page-lock limit", "huge pages", "io_uring",
        "open files", "file system", "free", "O_DIRECT", "libraries"}) {
    EXPECT_THAT(report, HasSubstr(std::string("\n  ") + part + " ")) << report;
  }
  EXPECT_THAT(report, HasSubstr("\n" + folder.file("none") + "\n"));
  EXPECT_THAT(report, HasSubstr("CUDA             not in this build"));
  std::istringstream lines(report);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("  ")) {
      EXPECT_EQ(line[18], ' ') << line;
      EXPECT_NE(line[19], ' ') << line;
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace terrace
