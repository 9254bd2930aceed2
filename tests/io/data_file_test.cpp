#include "io/data_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdlib>

#include "io/io_probe.h"
#include "src/base/units.h"
#include "tests/support/io_fixture.h"
#include "tests/support/temp_dir.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using Mode = DataFile::Mode;

std::size_t entries(const TempDir& folder) {
  const std::filesystem::directory_iterator begin(folder.path());
  return static_cast<std::size_t>(std::distance(begin, std::filesystem::directory_iterator{}));
}

TEST(DataFile, CreatesOpensAndMoves) {
  const TempDir folder;
  {
    DataFile file(folder.file("data"), Mode::create);
    EXPECT_EQ(file.size_bytes(), 0u);  // the probe leaves nothing
    EXPECT_EQ(file.path(), folder.file("data"));
    file.allocate(3 * kMiB + 5);
    EXPECT_EQ(file.size_bytes(), 3 * kMiB + 5);
    struct stat status {};
    ASSERT_EQ(::fstat(file.fd(), &status), 0);
    EXPECT_GE(static_cast<std::uint64_t>(status.st_blocks) * 512, 3 * kMiB + 5);  // real space
    DataFile moved(std::move(file));
    EXPECT_EQ(file.fd(), -1);
    EXPECT_GE(moved.fd(), 0);
  }
  EXPECT_THAT(error_of([&] { DataFile(folder.file("data"), Mode::create); }), HasSubstr("File exists"));
  DataFile again(folder.file("data"), Mode::open);
  EXPECT_EQ(again.size_bytes(), 3 * kMiB + 5);
  const DataFile reader(folder.file("data"), Mode::open_readonly);
  EXPECT_EQ(::pwrite(reader.fd(), "x", 1, 0), -1);
  again = DataFile(folder.path(), Mode::temporary);
  EXPECT_EQ(again.size_bytes(), 0u);
}

TEST(DataFile, OpeningDoesNotChangeWhatIsThere) {
  const TempDir folder;
  const std::string text(10000, 'x');
  FILE* out = std::fopen(folder.file("data").c_str(), "w");
  std::fwrite(text.data(), 1, text.size(), out);
  std::fclose(out);
  { const DataFile file(folder.file("data"), Mode::open); }
  std::string back(10001, 0);
  FILE* in = std::fopen(folder.file("data").c_str(), "r");
  back.resize(std::fread(back.data(), 1, back.size(), in));
  std::fclose(in);
  EXPECT_EQ(back, text);
}

TEST(DataFile, MissingPathsAreNamed) {
  const TempDir folder;
  EXPECT_EQ(error_of([&] { DataFile(folder.file("none"), Mode::open); }),
            "not found: cannot open " + folder.file("none") + ": No such file or directory");
  EXPECT_THAT(error_of([&] { DataFile(folder.file("no/where"), Mode::create); }),
              HasSubstr("not found: cannot create"));
  EXPECT_THAT(error_of([&] { DataFile(folder.file("none"), Mode::temporary); }),
              HasSubstr(folder.file("none")));
  EXPECT_THAT(error_of([&] { free_bytes(folder.file("none")); }), HasSubstr("not found: free space of"));
  EXPECT_THAT(error_of([&] { file_system_name(folder.file("none")); }), HasSubstr("not found"));
}

TEST(DataFile, ATemporaryFileHasNoName) {
  const TempDir folder;
  DataFile file(folder.path(), Mode::temporary);
  file.allocate(kMiB);
  EXPECT_EQ(entries(folder), 0u);
}

TEST(DataFile, TooLargeIsRefusedInWordsAndLeavesTheFileAsItWas) {
  const TempDir folder;
  DataFile file(folder.file("data"), Mode::create);
  file.allocate(kMiB);
  const std::uint64_t wanted = free_bytes(folder.path()) + 64 * kGiB;
  const std::string error = error_of([&] { file.allocate(wanted); });
  EXPECT_THAT(error, HasSubstr("does not fit: " + folder.file("data") + ": no room for "));
  EXPECT_THAT(error, HasSubstr("(" + std::to_string(wanted) + " bytes)"));
  EXPECT_THAT(error, HasSubstr("are free: No space left on device"));
  EXPECT_EQ(file.size_bytes(), kMiB);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{2 * kMiB, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  const std::string limited = error_of([&] { file.allocate(4 * kMiB); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(limited, HasSubstr("File too large"));
  EXPECT_EQ(file.size_bytes(), kMiB);
  file.allocate(4 * kMiB);
  EXPECT_EQ(file.size_bytes(), 4 * kMiB);
}

TEST(DataFile, DirectIsWhatRealTransfersSay) {
  for (const std::string& parent : {testing::TempDir(), std::string("/dev/shm"), std::string("/proc/self")}) {
    if (!std::filesystem::is_directory(parent)) continue;
    std::string why = "?";
    const bool works = probe_direct_io(parent, &why);
    EXPECT_EQ(why.empty(), works) << parent;
    EXPECT_EQ(probe_direct_io(parent, nullptr), works);
    if (parent == "/proc/self") {
      EXPECT_FALSE(works);
      continue;
    }
    EXPECT_EQ(DataFile(parent, Mode::temporary).direct(), works) << parent;
    EXPECT_FALSE(file_system_name(parent).empty());
    EXPECT_GT(free_bytes(parent), 0u);
  }
  if (std::filesystem::is_directory("/dev/shm")) {
    EXPECT_EQ(file_system_name("/dev/shm"), "tmpfs");
  }
}

}  // namespace
}  // namespace terrace
