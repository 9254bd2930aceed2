#include "io/store_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "io/store_files.h"
#include "src/base/fail.h"
#include "src/base/log.h"

namespace terrace {

StoreLock::~StoreLock() {
  release();
}

StoreLock::StoreLock(StoreLock&& other) noexcept : fds_(std::exchange(other.fds_, {})) {}

StoreLock& StoreLock::operator=(StoreLock&& other) noexcept {
  std::swap(fds_, other.fds_);
  return *this;
}

void StoreLock::take(int fd, const std::string& path, const std::string& directory, Deadline deadline,
                     bool shared) {
  while (::flock(fd, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0) {
    const int error = errno;
    if (error == EINTR) continue;
    if (error != EWOULDBLOCK) fail(ErrorCode::io_failed, "cannot lock {}: {}", path, std::strerror(error));
    if (std::chrono::steady_clock::now() >= deadline) {
      fail(ErrorCode::busy, "the store {} is in use by {}: {} is locked", directory,
           describe_holder(directory), path);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  fds_.push_back(fd);
}

void StoreLock::share(int fd, const std::string& path, const std::string& directory) {
  // The kernel lets go of the one before it takes the other.
  while (::flock(fd, LOCK_SH | LOCK_NB) != 0) {
    const int error = errno;
    if (error == EINTR) continue;
    if (error != EWOULDBLOCK) fail(ErrorCode::io_failed, "cannot lock {}: {}", path, std::strerror(error));
    fail(ErrorCode::busy, "the store {} was taken by {} while it was being shared: {} is locked", directory,
         describe_holder(directory), path);
  }
}

void StoreLock::release() {
  for (const int fd : fds_) ::flock(fd, LOCK_UN);
  fds_.clear();
}

void note_holder(const std::string& directory) {
  const std::string path = join(directory, kHolderName);
  const std::string text = std::to_string(::getpid()) + "\n";
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  const bool noted = fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (!noted) logger()->warn("{}: the process id could not be noted: {}", path, std::strerror(errno));
  if (fd >= 0) ::close(fd);
}

std::string describe_holder(const std::string& directory) {
  long pid = 0;
  try {
    pid = std::stol(read_text(join(directory, kHolderName)));
  } catch (const std::exception&) {
    return "a process that left no number";
  }
  if (pid == ::getpid()) return fmt::format("process {} (this one)", pid);
  if (::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH) {
    return fmt::format("process {} (which has ended, or runs in another container)", pid);
  }
  return fmt::format("process {}", pid);
}

}  // namespace terrace
