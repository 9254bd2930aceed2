#include "io/store_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <mutex>

#include "src/base/fail.h"
#include "src/base/units.h"

namespace terrace {

std::string join(const std::string& directory, std::string_view name) {
  return directory + "/" + std::string(name);
}

std::string resolve(const std::string& path) {
  std::filesystem::path result = std::filesystem::weakly_canonical(std::filesystem::absolute(path));
  if (!result.has_filename() && result.has_relative_path()) result = result.parent_path();
  return result.string();
}

AlignedBlock::AlignedBlock(std::size_t bytes)
    : data_(
          static_cast<std::byte*>(std::aligned_alloc(4096, round_up(std::max<std::size_t>(bytes, 1), 4096))),
          &std::free),
      bytes_(round_up(std::max<std::size_t>(bytes, 1), 4096)) {
  if (data_ == nullptr) fail(ErrorCode::does_not_fit, "no memory for {} bytes of the store's", bytes_);
  std::memset(data_.get(), 0, bytes_);
}

struct TransferGroup::State {
  std::mutex mutex;
  std::condition_variable ended;
  std::size_t open = 0;
  std::exception_ptr error;
};

TransferGroup::TransferGroup() : state_(std::make_shared<State>()) {}

TransferGroup::~TransferGroup() {
  std::unique_lock lock(state_->mutex);
  state_->ended.wait(lock, [&] { return state_->open == 0; });
}

std::function<void(std::exception_ptr)> TransferGroup::add() {
  // Ended by the call; or, where submitting threw and nobody will call, by letting go of it.
  struct Member {
    std::shared_ptr<State> state;
    bool called = false;
    void end(const std::exception_ptr& error) {
      const std::lock_guard guard(state->mutex);
      called = true;
      if (error && !state->error) state->error = error;
      if (--state->open == 0) state->ended.notify_all();
    }
    explicit Member(std::shared_ptr<State> group) : state(std::move(group)) {
      const std::lock_guard guard(state->mutex);
      ++state->open;
    }
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;
    ~Member() {
      if (!called) end({});
    }
  };
  return [member = std::make_shared<Member>(state_)](const std::exception_ptr& error) { member->end(error); };
}

void TransferGroup::wait() {
  std::unique_lock lock(state_->mutex);
  state_->ended.wait(lock, [&] { return state_->open == 0; });
  if (state_->error) std::rethrow_exception(std::exchange(state_->error, nullptr));
}

void transfer(IoQueue& queue, IoDirection direction, IoFile file, std::uint64_t offset_bytes,
              std::span<std::byte> data) {
  TransferGroup group;
  IoRequest request;
  request.direction = direction;
  request.file = file;
  request.offset_bytes = offset_bytes;
  request.data = data.data();
  request.bytes = data.size();
  request.done = group.add();
  queue.submit(std::move(request));
  group.wait();
}

bool file_exists(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0;
}

std::string read_text(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    const int error = errno;
    fail(error == ENOENT || error == ENOTDIR ? ErrorCode::not_found : ErrorCode::io_failed,
         "cannot open {}: {}", path, std::strerror(error));
  }
  std::string text;
  std::string piece(std::size_t{1} << 16, '\0');
  int error = 0;
  while (error == 0) {
    const ssize_t got = ::read(fd, piece.data(), piece.size());
    if (got == 0) break;
    if (got > 0) {
      text.append(piece.data(), static_cast<std::size_t>(got));
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  ::close(fd);
  if (error != 0) fail(ErrorCode::io_failed, "cannot read {}: {}", path, std::strerror(error));
  return text;
}

void remove_data_file(const DataFile& file) noexcept {
  ::unlink(file.path().c_str());
  [[maybe_unused]] const int ignored = ::ftruncate(file.fd(), 0);
}

void sync_directory(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int error = fd < 0 ? errno : 0;
  if (fd >= 0) {
    while (::fsync(fd) != 0) {
      if (errno == EINTR) continue;
      if (errno != EINVAL) error = errno;  // EINVAL: this file system has no such thing
      break;
    }
    ::close(fd);
  }
  if (error != 0) fail(ErrorCode::io_failed, "cannot flush the folder {}: {}", path, std::strerror(error));
}

}  // namespace terrace
