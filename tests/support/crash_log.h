// A disk that can crash: an IoQueue that logs every write and flush, and builds the images that a crash after
// any prefix of the log may leave.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "io/io_queue.h"

namespace terrace {

// What becomes of the writes that no flush of their file followed. The order is that of severity of nothing:
// try all.
enum class CrashMode : std::uint8_t {
  keep,     // all reached the disk
  lose,     // none did
  torn,     // of each, any of its sectors of 512 bytes
  reorder,  // any of them, in any order
};
inline constexpr std::array kCrashModes = {CrashMode::keep, CrashMode::lose, CrashMode::torn,
                                           CrashMode::reorder};

// Transfers happen at once, on the calling thread: real bytes in real files (so that several queues can share
// them). Flushes are logged only. Files are told apart by path; the bytes that a file holds when it is first
// registered lie on the disk safely. Nameless files (scratch) are served but not logged: a crash takes them.
// Thread contract: transfers and flushes from any thread; the log is read and images are built when none is
// under way.
class CrashLog final : public IoQueue {
 public:
  // Called before an event is carried out, with its number, one at a time; may throw, or end the process.
  std::function<void(std::size_t)> before_event;

  std::string name() const override { return "crash log"; }
  IoFile register_file(int fd, std::string path) override;
  bool register_buffers(std::span<const std::span<std::byte>>) override { return true; }
  IoTicket submit(IoRequest request) override;
  void promote(IoTicket) override {}
  void flush(IoFile file) override;
  void drain() override {}
  IoQueueStats stats() const override { return {}; }

  // Logs that `from` is now called `to`, for good.
  void renamed(const std::string& from, const std::string& to);

  std::size_t events() const { return events_.size(); }

  // "register", "write", "flush" or "rename", with the file's name.
  std::string describe(std::size_t event) const;

  // Writes the files as a crash after the first `prefix` events may leave them: a file at root/x becomes
  // target/x (folders are made). Files first registered later are not there.
  void build_image(const std::string& root, const std::string& target, std::size_t prefix, CrashMode mode,
                   std::mt19937_64& random) const;

 private:
  using Sector = std::array<std::byte, 512>;
  using Sectors = std::map<std::uint64_t, Sector>;  // by number; others are zero

  struct File {
    int fd = -1;  // as registered last
    std::string path;
    std::uint64_t size_bytes = 0;
    bool logged = true;
    Sectors base;
  };

  struct Event {
    enum class Kind : std::uint8_t { registered, write, flush, rename } kind = Kind::write;
    std::size_t file = 0;
    std::uint64_t offset_bytes = 0;
    std::vector<std::byte> data;
    std::string path;  // of a rename
  };

  static void apply(Sectors& sectors, const Event& write, const std::function<bool()>& keep_sector);
  void log(Event event);

  std::mutex mutex_;
  std::deque<File> files_;
  std::vector<std::size_t> file_of_;  // of each IoFile
  std::vector<Event> events_;
  IoTicket last_ticket_ = 0;
};

}  // namespace terrace
