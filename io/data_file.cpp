#include "io/data_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "io/io_probe.h"
#include "src/base/fail.h"
#include "src/base/log.h"
#include "src/base/units.h"

namespace terrace {
namespace {

constexpr std::size_t kBlockBytes = 4096;
using Block = std::unique_ptr<std::byte, decltype(&std::free)>;

Block make_block(std::byte fill) {
  Block block(static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, kBlockBytes)), &std::free);
  check(block != nullptr, "no memory for a block of 4096 bytes");
  std::memset(block.get(), static_cast<int>(fill), kBlockBytes);
  return block;
}

// Empty when one block can be read (and first written, when `write`) through fd; else why not. The file keeps
// its size.
std::string try_block(int fd, bool write) {
  const Block block = make_block(std::byte{0xA5});
  if (write) {
    const ssize_t put = ::pwrite(fd, block.get(), kBlockBytes, 0);
    if (put < 0) return std::strerror(errno);
    if (put != static_cast<ssize_t>(kBlockBytes)) return fmt::format("wrote {} of 4096 bytes", put);
    std::memset(block.get(), 0, kBlockBytes);
  }
  const ssize_t got = ::pread(fd, block.get(), kBlockBytes, 0);
  if (got < 0) return std::strerror(errno);
  if (write) {
    const bool same = got == static_cast<ssize_t>(kBlockBytes) && block.get()[0] == std::byte{0xA5} &&
                      block.get()[kBlockBytes - 1] == std::byte{0xA5};
    if (!same) return fmt::format("read back {} bytes that differ from the 4096 written", got);
    if (::ftruncate(fd, 0) != 0) return std::strerror(errno);
  }
  return {};
}

bool clear_direct(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  return flags >= 0 && ::fcntl(fd, F_SETFL, flags & ~O_DIRECT) == 0;
}

void say_not_direct(int fd, const std::string& path, const std::string& why) {
  static std::mutex mutex;
  static std::set<dev_t> said;
  struct stat status {};
  ::fstat(fd, &status);
  const std::lock_guard lock(mutex);
  if (!said.insert(status.st_dev).second) return;
  logger()->warn("{}: direct I/O does not work on this file system ({}: {}); the page cache is used", path,
                 file_system_name(path), why);
}

int open_nameless(const std::string& folder, int flags) {
  const int fd = ::open(folder.c_str(), O_TMPFILE | flags, 0600);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;
  std::string name = folder + "/terrace-scratch-XXXXXX";
  const int named = ::mkostemp(name.data(), flags & (O_DIRECT | O_CLOEXEC));
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

int open_mode(const std::string& path, DataFile::Mode mode, int direct) {
  switch (mode) {
    case DataFile::Mode::create:
      return ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | direct, 0644);
    case DataFile::Mode::open:
      return ::open(path.c_str(), O_RDWR | O_CLOEXEC | direct);
    case DataFile::Mode::open_readonly:
      return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | direct);
    case DataFile::Mode::temporary:
      return open_nameless(path, O_RDWR | O_CLOEXEC | direct);
  }
  return -1;
}

const char* mode_name(DataFile::Mode mode) {
  switch (mode) {
    case DataFile::Mode::create:
      return "create";
    case DataFile::Mode::open:
      return "open";
    case DataFile::Mode::open_readonly:
      return "open to read";
    case DataFile::Mode::temporary:
      return "create a nameless file in";
  }
  return "?";
}

}  // namespace

DataFile::DataFile(const std::string& path, Mode mode) : path_(path) {
  std::string why;
  fd_ = open_mode(path, mode, O_DIRECT);
  if (fd_ < 0 && errno == EINVAL) {  // refused at once
    why = std::strerror(EINVAL);
    if (mode == Mode::create) ::unlink(path.c_str());  // some file systems make it first
    fd_ = open_mode(path, mode, 0);
  } else if (fd_ >= 0) {
    why = try_block(fd_, mode == Mode::create || mode == Mode::temporary);
    direct_ = why.empty();
    if (why == std::strerror(ENOSPC) || why == std::strerror(EDQUOT)) {  // says nothing about direct I/O
      ::close(fd_);
      if (mode == Mode::create) ::unlink(path.c_str());
      fail(ErrorCode::does_not_fit, "cannot {} {}: no room for 4096 bytes: {}", mode_name(mode), path, why);
    }
  }
  if (fd_ < 0) {
    const int error = errno;
    fail(error == ENOENT || error == ENOTDIR ? ErrorCode::not_found : ErrorCode::io_failed,
         "cannot {} {}: {}", mode_name(mode), path, std::strerror(error));
  }
  if (direct_) return;
  if (!clear_direct(fd_)) {
    const int error = errno;
    ::close(fd_);
    fail(ErrorCode::io_failed, "{}: direct I/O fails ({}) and cannot be switched off: {}", path, why,
         std::strerror(error));
  }
  say_not_direct(fd_, path, why);
}

DataFile::~DataFile() {
  if (fd_ >= 0) ::close(fd_);
}

DataFile::DataFile(DataFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), direct_(other.direct_), path_(std::move(other.path_)) {}

DataFile& DataFile::operator=(DataFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(direct_, other.direct_);
  std::swap(path_, other.path_);
  return *this;
}

std::uint64_t DataFile::size_bytes() const {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) fail(ErrorCode::io_failed, "size of {}: {}", path_, std::strerror(errno));
  return static_cast<std::uint64_t>(status.st_size);
}

namespace {

// Writes zeros over [from, to), where there is no fallocate. 0 or errno.
int write_zeros(int fd, std::uint64_t from, std::uint64_t to) {
  const Block block = make_block(std::byte{0});
  for (std::uint64_t at = from / kBlockBytes * kBlockBytes; at < to;) {
    const ssize_t put = ::pwrite(fd, block.get(), kBlockBytes, static_cast<off_t>(at));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return errno;
    if (put != static_cast<ssize_t>(kBlockBytes)) return ENOSPC;
    at += kBlockBytes;
  }
  return 0;
}

}  // namespace

void DataFile::allocate(std::uint64_t bytes) {
  if (bytes == 0) return;
  struct stat before {};
  struct statvfs room {};
  if (::fstat(fd_, &before) != 0 || ::fstatvfs(fd_, &room) != 0) {
    fail(ErrorCode::io_failed, "space of {}: {}", path_, std::strerror(errno));
  }
  const std::uint64_t free = std::uint64_t{room.f_bavail} * room.f_frsize;
  const std::uint64_t held = static_cast<std::uint64_t>(before.st_blocks) * 512;
  int error = bytes > free + held ? ENOSPC : 0;  // known beforehand: do not fill the disk to find out
  if (error == 0) {
    do {
      error = ::fallocate(fd_, 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
    } while (error == EINTR);
    if (error == EOPNOTSUPP) error = write_zeros(fd_, static_cast<std::uint64_t>(before.st_size), bytes);
    if (error != 0 && ::ftruncate(fd_, before.st_size) != 0) {
      logger()->warn("{}: could not be cut back to {} bytes: {}", path_, before.st_size,
                     std::strerror(errno));
    }
  }
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    fail(ErrorCode::does_not_fit, "{}: no room for {} ({} bytes); {} ({} bytes) are free: {}", path_,
         format_bytes(bytes), bytes, format_bytes(free), free, std::strerror(error));
  }
  if (error != 0) {
    fail(ErrorCode::io_failed, "{}: cannot allocate {} bytes: {}", path_, bytes, std::strerror(error));
  }
}

std::uint64_t free_bytes(const std::string& path) {
  struct statvfs room {};
  if (::statvfs(path.c_str(), &room) != 0) {
    fail(ErrorCode::not_found, "free space of {}: {}", path, std::strerror(errno));
  }
  return std::uint64_t{room.f_bavail} * room.f_frsize;
}

std::string file_system_name(const std::string& path) {
  struct statfs info {};
  if (::statfs(path.c_str(), &info) != 0) {
    fail(ErrorCode::not_found, "file system of {}: {}", path, std::strerror(errno));
  }
  constexpr std::uint32_t kXfs = 0x58465342, kZfs = 0x2FC12FC1, kFuse = 0x65735546, k9p = 0x01021997;
  switch (static_cast<std::uint32_t>(info.f_type)) {
    case EXT4_SUPER_MAGIC:
      return "ext4";
    case TMPFS_MAGIC:
      return "tmpfs";
    case OVERLAYFS_SUPER_MAGIC:
      return "overlay";
    case BTRFS_SUPER_MAGIC:
      return "btrfs";
    case F2FS_SUPER_MAGIC:
      return "f2fs";
    case NFS_SUPER_MAGIC:
      return "nfs";
    case RAMFS_MAGIC:
      return "ramfs";
    case kXfs:
      return "xfs";
    case kZfs:
      return "zfs";
    case kFuse:
      return "fuse";
    case k9p:
      return "9p";
    default:
      return fmt::format("type {:#x}", static_cast<std::uint32_t>(info.f_type));
  }
}

bool probe_direct_io(const std::string& folder, std::string* why) {
  const int fd = open_nameless(folder, O_RDWR | O_CLOEXEC | O_DIRECT);
  std::string reason = fd < 0 ? std::strerror(errno) : try_block(fd, true);
  if (fd >= 0) ::close(fd);
  if (why != nullptr) *why = reason;
  return reason.empty();
}

}  // namespace terrace
