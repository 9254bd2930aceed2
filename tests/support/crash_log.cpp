#include "tests/support/crash_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "src/base/fail.h"

namespace terrace {
namespace {

// A file's bytes past its holes.
std::vector<std::pair<std::uint64_t, std::vector<std::byte>>> read_sparse(const std::string& path) {
  std::vector<std::pair<std::uint64_t, std::vector<std::byte>>> pieces;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw std::runtime_error("crash log: cannot open " + path);
  off_t at = 0;
  while (true) {
    const off_t begin = ::lseek(fd, at, SEEK_DATA);
    if (begin < 0) break;  // ENXIO: no more data
    const off_t end = ::lseek(fd, begin, SEEK_HOLE);
    std::vector<std::byte> data(static_cast<std::size_t>(end - begin));
    if (::pread(fd, data.data(), data.size(), begin) != static_cast<ssize_t>(data.size())) {
      throw std::runtime_error("crash log: cannot read " + path);
    }
    pieces.emplace_back(begin, std::move(data));
    at = end;
  }
  ::close(fd);
  return pieces;
}

}  // namespace

IoFile CrashLog::register_file(int fd, std::string path) {
  const std::lock_guard lock(mutex_);
  struct stat here {};
  struct stat there {};
  if (::fstat(fd, &here) != 0) throw std::runtime_error("crash log: " + path + " is not open");
  const bool named =
      ::stat(path.c_str(), &there) == 0 && here.st_ino == there.st_ino && here.st_dev == there.st_dev;
  auto found = files_.end();
  if (named)
    found = std::find_if(files_.begin(), files_.end(), [&](const File& f) { return f.path == path; });
  std::size_t index = static_cast<std::size_t>(found - files_.begin());
  if (found == files_.end()) {
    File file;
    file.path = named ? path : "";
    file.size_bytes = static_cast<std::uint64_t>(here.st_size);
    file.logged = named;
    if (named) {
      for (const auto& [offset, data] : read_sparse(path)) {
        apply(file.base, {Event::Kind::write, 0, offset, data, {}}, [] { return true; });
      }
    }
    index = files_.size();
    files_.push_back(std::move(file));
    if (named) log({Event::Kind::registered, index, 0, {}, {}});
  }
  files_[index].fd = fd;
  file_of_.push_back(index);
  return static_cast<IoFile>(file_of_.size() - 1);
}

IoTicket CrashLog::submit(IoRequest request) {
  std::exception_ptr error;
  IoTicket ticket = 0;
  {
    const std::lock_guard lock(mutex_);
    ticket = ++last_ticket_;
    const std::size_t index = file_of_.at(request.file);
    File& file = files_[index];
    try {
      const auto offset = static_cast<off_t>(request.offset_bytes);
      const bool reads = request.direction == IoDirection::read;
      if (!reads && file.logged) {
        log({Event::Kind::write,
             index,
             request.offset_bytes,
             {request.data, request.data + request.bytes},
             {}});
        file.size_bytes = std::max(file.size_bytes, request.offset_bytes + request.bytes);
      }
      const ssize_t moved = reads ? ::pread(file.fd, request.data, request.bytes, offset)
                                  : ::pwrite(file.fd, request.data, request.bytes, offset);
      if (moved != static_cast<ssize_t>(request.bytes)) {
        fail(ErrorCode::io_failed, "{} at offset {}: wanted {} bytes, got {} ({})", file.path,
             request.offset_bytes, request.bytes, moved, std::strerror(errno));
      }
    } catch (...) {
      error = std::current_exception();
    }
  }
  if (request.done) request.done(error);
  return ticket;
}

void CrashLog::flush(IoFile file) {
  const std::lock_guard lock(mutex_);
  const std::size_t index = file_of_.at(file);
  if (files_[index].logged) log({Event::Kind::flush, index, 0, {}, {}});
}

void CrashLog::renamed(const std::string& from, const std::string& to) {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(files_.begin(), files_.end(), [&](const File& file) { return file.path == from; });
  if (found == files_.end()) throw std::runtime_error("crash log: nothing is called " + from);
  log({Event::Kind::rename, static_cast<std::size_t>(found - files_.begin()), 0, {}, to});
}

std::string CrashLog::describe(std::size_t event) const {
  constexpr std::array kNames = {"register", "write", "flush", "rename"};
  const Event& at = events_.at(event);
  return std::string(kNames[static_cast<std::size_t>(at.kind)]) + " " +
         std::filesystem::path(files_[at.file].path).filename().string();
}

void CrashLog::log(Event event) {
  if (before_event) before_event(events_.size());
  events_.push_back(std::move(event));
}

// A write that ends inside a sector leaves the rest of it as it was.
void CrashLog::apply(Sectors& sectors, const Event& write, const std::function<bool()>& keep_sector) {
  const std::uint64_t end = write.offset_bytes + write.data.size();
  for (std::uint64_t at = write.offset_bytes; at < end;) {
    const std::uint64_t number = at / 512;
    const std::uint64_t stop = std::min(end, (number + 1) * 512);
    if (keep_sector()) {
      Sector& sector = sectors.try_emplace(number).first->second;
      std::memcpy(sector.data() + (at - number * 512), write.data.data() + (at - write.offset_bytes),
                  stop - at);
    }
    at = stop;
  }
}

void CrashLog::build_image(const std::string& root, const std::string& target, std::size_t prefix,
                           CrashMode mode, std::mt19937_64& random) const {
  struct State {
    bool there = false;
    std::string path;
    Sectors sectors;
    std::vector<const Event*> open;  // writes that no flush followed
  };
  std::vector<State> states(files_.size());
  const auto always = [] { return true; };
  const auto maybe = [&] { return random() % 2 == 0; };
  for (std::size_t i = 0; i < prefix; ++i) {
    const Event& event = events_.at(i);
    State& state = states[event.file];
    switch (event.kind) {
      case Event::Kind::registered:
        state.there = true;
        state.path = files_[event.file].path;
        state.sectors = files_[event.file].base;
        break;
      case Event::Kind::write:
        state.open.push_back(&event);
        break;
      case Event::Kind::flush:
        for (const Event* write : state.open) apply(state.sectors, *write, always);
        state.open.clear();
        break;
      case Event::Kind::rename:
        state.path = event.path;
        break;
    }
  }
  for (std::size_t f = 0; f < states.size(); ++f) {
    State& state = states[f];
    if (!state.there) continue;
    if (mode == CrashMode::reorder) std::shuffle(state.open.begin(), state.open.end(), random);
    for (const Event* write : state.open) {
      if (mode == CrashMode::lose || (mode == CrashMode::reorder && !maybe())) continue;
      apply(state.sectors, *write, mode == CrashMode::torn ? std::function<bool()>(maybe) : always);
    }
    const auto path =
        std::filesystem::path(target) / std::filesystem::path(state.path).lexically_relative(root);
    std::filesystem::create_directories(path.parent_path());
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    bool good = fd >= 0 && ::ftruncate(fd, static_cast<off_t>(files_[f].size_bytes)) == 0;
    for (auto it = state.sectors.begin(); good && it != state.sectors.end();) {  // runs of sectors
      std::vector<std::byte> run;
      const std::uint64_t first = it->first;
      for (std::uint64_t next = first; it != state.sectors.end() && it->first == next; ++it, ++next) {
        run.insert(run.end(), it->second.begin(), it->second.end());
      }
      const std::uint64_t offset = first * 512;
      run.resize(std::min<std::uint64_t>(run.size(), files_[f].size_bytes - offset));
      good = ::pwrite(fd, run.data(), run.size(), static_cast<off_t>(offset)) ==
             static_cast<ssize_t>(run.size());
    }
    if (fd >= 0) ::close(fd);
    if (!good) throw std::runtime_error("crash log: cannot write " + path.string());
  }
}

}  // namespace terrace
