// A file changed in place by "another program".
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <utility>

namespace terrace {

// Writes `bytes` at `offset`, and again until the file's times show it: the kernel's clock ticks every few
// ms.
inline void overwrite(const std::string& path, std::uint64_t offset, const std::string& bytes) {
  const auto time = [&] {
    struct stat status {};
    EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
    return std::pair(status.st_ctim.tv_sec, status.st_ctim.tv_nsec);
  };
  const auto before = time();
  do {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file << bytes;
  } while (time() == before);
}

}  // namespace terrace
