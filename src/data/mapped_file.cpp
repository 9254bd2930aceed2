#include "src/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "src/base/fail.h"

namespace terrace {

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const int fd =
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // non-blocking: a pipe is refused below
  if (fd < 0) {
    fail(errno == ENOENT ? ErrorCode::not_found : ErrorCode::io_failed, "{}: cannot open to read: {}", path,
         std::strerror(errno));
  }
  struct stat status {};
  const bool known = ::fstat(fd, &status) == 0;
  if (!known || !S_ISREG(status.st_mode)) {
    ::close(fd);
    fail(ErrorCode::invalid_argument, "{}: wanted a regular file; got {}", path,
         known && S_ISDIR(status.st_mode) ? "a directory" : "something else");
  }
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ > 0) {
    void* mapping = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
    if (mapping == MAP_FAILED) {
      const int error = errno;
      ::close(fd);
      fail(ErrorCode::io_failed, "{}: cannot map {} bytes: {}", path, size_, std::strerror(error));
    }
    data_ = static_cast<const std::byte*>(mapping);
  }
  ::close(fd);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace terrace
