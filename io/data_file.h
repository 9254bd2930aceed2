// One preallocated file of extents, opened for direct I/O where the file system really does it.
#pragma once

#include <cstdint>
#include <string>

namespace terrace {

// Move-only owner of a file descriptor. Thread contract: belongs to one thread; fd() may be used from any.
class DataFile {
 public:
  enum class Mode { create, open, open_readonly, temporary };

  // create: a new file (fails when it exists). open: an existing one. temporary: a nameless file in the
  // folder `path`, gone when the process ends, however it ends (O_TMPFILE, or created and unlinked). O_DIRECT
  // is used where a real 4096-byte write and read (for open modes: a read) through it work; else the page
  // cache, said once per file system in the log. Throws io_failed or not_found by path.
  DataFile(const std::string& path, Mode mode);
  ~DataFile();
  DataFile(DataFile&& other) noexcept;
  DataFile& operator=(DataFile&& other) noexcept;
  DataFile(const DataFile&) = delete;
  DataFile& operator=(const DataFile&) = delete;

  // Allocates real space for [0, bytes) (fallocate; zeros written where the file system has none). Throws
  // does_not_fit with path, bytes wanted and bytes free; the file is then as before.
  void allocate(std::uint64_t bytes);

  int fd() const { return fd_; }
  bool direct() const { return direct_; }
  const std::string& path() const { return path_; }
  std::uint64_t size_bytes() const;

 private:
  int fd_ = -1;
  bool direct_ = false;
  std::string path_;
};

// What is free for this user on the file system of `path` (a folder). Throws not_found by name.
std::uint64_t free_bytes(const std::string& path);
// "ext4", "tmpfs", "overlay", ...
std::string file_system_name(const std::string& path);

}  // namespace terrace
