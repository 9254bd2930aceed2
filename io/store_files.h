// Small steps on files that the store takes when it is created, opened and closed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "io/data_file.h"
#include "io/io_queue.h"

namespace terrace {

// Names in a store's directory.
inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::string_view kUnfinishedName = "manifest.json.new";  // a creation that has not ended
inline constexpr std::string_view kRecordName = "record";
inline constexpr std::string_view kHolderName = "holder";  // process id of the last one that took the locks

std::string join(const std::string& directory, std::string_view name);

// Absolute, without links, dots or a slash at the end; the path need not exist.
std::string resolve(const std::string& path);

// 4096-aligned bytes, zeroed; for blocks, trailers and the run state.
class AlignedBlock {
 public:
  explicit AlignedBlock(std::size_t bytes);  // rounded up to 4096
  std::byte* data() const { return data_.get(); }
  std::size_t size() const { return bytes_; }
  std::span<std::byte> span() const { return {data_.get(), bytes_}; }

 private:
  std::unique_ptr<std::byte, decltype(&std::free)> data_;
  std::size_t bytes_;
};

// Submits one transfer and waits for its end; throws what it ended with.
void transfer(IoQueue& queue, IoDirection direction, IoFile file, std::uint64_t offset_bytes,
              std::span<std::byte> data);

// Waits for many transfers. add() gives the `done` of one more; a transfer whose submission throws does not
// count. Thread contract: add() and wait() on one thread; `done` is called wherever.
class TransferGroup {
 public:
  TransferGroup();
  ~TransferGroup();  // waits
  TransferGroup(const TransferGroup&) = delete;
  TransferGroup& operator=(const TransferGroup&) = delete;
  std::function<void(std::exception_ptr)> add();
  void wait();  // throws the first error

 private:
  struct State;
  std::shared_ptr<State> state_;
};

bool file_exists(const std::string& path);
std::string read_text(const std::string& path);  // throws not_found, io_failed

// Unlinks the file and gives its space back at once, also where a queue still holds it open. Best effort.
void remove_data_file(const DataFile& file) noexcept;

// fsync of a folder, so that names made, renamed or removed in it last. Throws io_failed by name.
void sync_directory(const std::string& path);

}  // namespace terrace
