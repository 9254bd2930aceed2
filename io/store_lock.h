// The locks of a store: flock on the open descriptions that its I/O uses, so that they last until the kernel
// has finished a killed run's requests.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace terrace {

// Move-only; releases in its destructor, which must come before the descriptors are closed: a queue may keep
// the open description alive for longer. Thread contract: belongs to one thread.
class StoreLock {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  StoreLock() = default;
  ~StoreLock();
  StoreLock(StoreLock&& other) noexcept;
  StoreLock& operator=(StoreLock&& other) noexcept;
  StoreLock(const StoreLock&) = delete;
  StoreLock& operator=(const StoreLock&) = delete;

  // Locks `fd` (the file `path` of the store in `directory`), retrying until `deadline`; then throws busy
  // with the process that holds the store.
  // `shared`: beside other shared locks (the processes of one run), never beside an exclusive one.
  void take(int fd, const std::string& path, const std::string& directory, Deadline deadline,
            bool shared = false);
  // Makes an exclusive lock that this holds a shared one. Throws busy where another process came between.
  void share(int fd, const std::string& path, const std::string& directory);
  void release();

 private:
  std::vector<int> fds_;
};

// Notes this process as the holder, for the message of the next one that is refused. Best effort.
void note_holder(const std::string& directory);
// "process 1234", "process 1234 (this one)", "process 1234 (which has ended ...)", "a process that left no
// number".
std::string describe_holder(const std::string& directory);

}  // namespace terrace
