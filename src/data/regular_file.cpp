#include "src/data/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "src/base/fail.h"

namespace terrace {
namespace {

std::int64_t nanoseconds(const timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

RegularFile::RegularFile(const std::string& path)
    : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {  // a pipe is refused below
  if (fd_ < 0) {
    fail(errno == ENOENT ? ErrorCode::not_found : ErrorCode::io_failed, "{}: cannot open to read: {}", path,
         std::strerror(errno));
  }
  struct stat status {};
  const bool known = ::fstat(fd_, &status) == 0;
  if (!known || !S_ISREG(status.st_mode)) {
    ::close(fd_);
    fail(ErrorCode::invalid_argument, "{}: wanted a regular file; got {}", path,
         known && S_ISDIR(status.st_mode) ? "a directory" : "something else");
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
  stamp_ = {size_, nanoseconds(status.st_mtim), nanoseconds(status.st_ctim)};
}

RegularFile::~RegularFile() {
  if (fd_ >= 0) ::close(fd_);
}

RegularFile::RegularFile(RegularFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      size_(other.size_),
      stamp_(other.stamp_) {}

RegularFile& RegularFile::operator=(RegularFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  std::swap(stamp_, other.stamp_);
  return *this;
}

void RegularFile::read(std::uint64_t offset, std::span<std::byte> out) const {
  check(offset <= size_ && out.size() <= size_ - offset, "{}: bytes [{}, {}) of {}", path_, offset,
        offset + out.size(), size_);
  while (!out.empty()) {
    const ssize_t got = ::pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      fail(ErrorCode::io_failed, "{}: cannot read at offset {}: wanted {} bytes, got {}", path_, offset,
           out.size(), std::strerror(errno));
    }
    if (got == 0) {
      fail(ErrorCode::corrupt,
           "{}: cut short while it was being read: wanted bytes {} to {}; the file has {} bytes, and had {} "
           "when it was opened",
           path_, offset, offset + out.size(), stamp_now().size, size_);
    }
    offset += static_cast<std::uint64_t>(got);
    out = out.subspan(static_cast<std::size_t>(got));
  }
}

bool RegularFile::changed() {
  const Stamp now = stamp_now();
  return std::exchange(stamp_, now) != now;
}

RegularFile::Stamp RegularFile::stamp_now() const {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) {
    fail(ErrorCode::io_failed, "{}: cannot look at its size: {}", path_, std::strerror(errno));
  }
  return {static_cast<std::uint64_t>(status.st_size), nanoseconds(status.st_mtim),
          nanoseconds(status.st_ctim)};
}

}  // namespace terrace
