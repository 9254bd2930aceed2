// A whole file mapped to read.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace terrace {

// Move-only; unmapped in the destructor. Thread contract: immutable after construction; any thread may read.
class MappedFile {
 public:
  MappedFile() = default;
  // Throws not_found (no such file), invalid_argument (not a regular file) or io_failed, each with the path.
  // An empty file maps to an empty span.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace terrace
