// A file read by offset. Nothing of it is mapped: a file that another program cuts short is an error here, in
// words, where a mapping would end the process with SIGBUS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace terrace {

// Move-only; closed in the destructor. Thread contract: const calls from any thread; changed() alone.
class RegularFile {
 public:
  // Throws not_found (no such file), invalid_argument (not a regular file) or io_failed, each with the path.
  explicit RegularFile(const std::string& path);
  ~RegularFile();
  RegularFile(RegularFile&& other) noexcept;
  RegularFile& operator=(RegularFile&& other) noexcept;
  RegularFile(const RegularFile&) = delete;
  RegularFile& operator=(const RegularFile&) = delete;

  std::uint64_t size() const { return size_; }  // in bytes, when it was opened
  const std::string& path() const { return path_; }

  // Fills `out` with the bytes from `offset` on, which lie inside size(). Throws corrupt where the file has
  // become too short (bytes wanted, size found), io_failed where the system does not read. Cost: a system
  // call and a copy.
  void read(std::uint64_t offset, std::span<std::byte> out) const;

  // Whether anyone has written to it, or changed its links or rights, since it was opened or since the last
  // call. Misses what happens within the kernel's tick (some ms) of a change that it has seen. Throws
  // io_failed. Cost: a system call.
  bool changed();

 private:
  struct Stamp {
    std::uint64_t size = 0;
    std::int64_t written_ns = 0;  // mtime
    std::int64_t changed_ns = 0;  // ctime, which nobody can set back
    friend bool operator==(const Stamp&, const Stamp&) = default;
  };
  Stamp stamp_now() const;

  std::string path_;
  int fd_ = -1;
  std::uint64_t size_ = 0;
  Stamp stamp_;
};

}  // namespace terrace
