#include "io/scratch.h"

#include <sys/stat.h>

#include <map>
#include <optional>
#include <utility>

#include "io/data_file.h"
#include "io/stripe.h"
#include "src/base/fail.h"
#include "src/base/hash.h"
#include "src/base/units.h"

namespace terrace {
namespace {

constexpr std::uint64_t kBlockBytes = 4096;

// The budgets; paths without one share what is free on their file system.
std::vector<StripePath> budgets_of(std::span<const VolumePath> paths) {
  std::vector<StripePath> budgets;
  std::vector<dev_t> devices;
  std::map<dev_t, std::uint64_t> sharers;
  for (const VolumePath& path : paths) {
    struct stat status {};
    if (::stat(path.path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
      fail(ErrorCode::not_found, "scratch path {} is not a folder", path.path);
    }
    devices.push_back(status.st_dev);
    if (path.size_bytes == 0) ++sharers[status.st_dev];
  }
  for (std::size_t p = 0; p < paths.size(); ++p) {
    const std::uint64_t size = paths[p].size_bytes;
    budgets.push_back({paths[p].path, size != 0 ? size : free_bytes(paths[p].path) / sharers[devices[p]]});
  }
  return budgets;
}

}  // namespace

struct Scratch::State {
  struct Extent {
    IoFile file = 0;
    std::size_t file_index = 0;  // in files
    std::uint64_t offset_bytes = 0;
    std::uint64_t bytes = 0;
    // What was last written: its length and checksum. Set when the write has ended.
    std::optional<std::pair<std::uint64_t, std::uint64_t>> written;
  };

  explicit State(IoQueue& q) : queue(q) {}

  IoQueue& queue;
  std::vector<DataFile> files;
  std::vector<Extent> extents;
  std::vector<VolumePath> held;

  Extent& checked(std::size_t index, std::span<std::byte> data) {
    check(index < extents.size(), "scratch extent {} of {}", index, extents.size());
    Extent& extent = extents[index];
    check(data.size() <= extent.bytes, "{} bytes for scratch extent {} of {}", data.size(), index,
          extent.bytes);
    return extent;
  }
};

Scratch::Scratch(IoQueue& queue, std::span<const VolumePath> paths,
                 std::span<const std::uint64_t> extent_bytes)
    : state_(std::make_unique<State>(queue)) {
  const StripePlan plan = plan_stripes(budgets_of(paths), extent_bytes);
  std::vector<std::size_t> file_of(paths.size());
  for (std::size_t p = 0; p < paths.size(); ++p) {
    state_->held.push_back({paths[p].path, plan.used_bytes[p]});
    if (plan.used_bytes[p] == 0) continue;
    file_of[p] = state_->files.size();
    state_->files.emplace_back(paths[p].path, DataFile::Mode::temporary).allocate(plan.used_bytes[p]);
  }
  // Only now that all the space is there: the queue keeps what is registered.
  std::vector<IoFile> ids;
  for (const DataFile& file : state_->files)
    ids.push_back(queue.register_file(file.fd(), file.path() + " (scratch)"));
  for (std::size_t e = 0; e < extent_bytes.size(); ++e) {
    const StripePlan::Place& place = plan.places[e];
    const std::uint64_t bytes = round_up(extent_bytes[e], kBlockBytes);
    const std::size_t file = file_of[place.path];
    state_->extents.push_back({bytes == 0 ? 0 : ids[file], file, place.offset_bytes, bytes, std::nullopt});
  }
}

Scratch::~Scratch() {
  state_->queue.drain();
}  // what is in flight names our extents

std::size_t Scratch::extents() const {
  return state_->extents.size();
}

const std::vector<VolumePath>& Scratch::held() const {
  return state_->held;
}

std::uint64_t Scratch::extent_bytes(std::size_t extent) const {
  return state_->extents.at(extent).bytes;
}

IoTicket Scratch::write(std::size_t index, std::span<std::byte> data, IoPriority priority,
                        std::function<void(std::exception_ptr)> done) {
  State::Extent& extent = state_->checked(index, data);
  extent.written.reset();
  const std::pair<std::uint64_t, std::uint64_t> now{data.size(), hash64(data.data(), data.size())};
  if (data.empty()) {
    extent.written = now;
    done(nullptr);
    return 0;
  }
  return state_->queue.submit({IoDirection::write, priority, extent.file, extent.offset_bytes, data.data(),
                               round_up(data.size(), kBlockBytes),
                               [&extent, now, done = std::move(done)](std::exception_ptr error) {
                                 if (!error) extent.written = now;
                                 done(std::move(error));
                               }});
}

IoTicket Scratch::read(std::size_t index, std::span<std::byte> data, IoPriority priority,
                       std::function<void(std::exception_ptr)> done) {
  State::Extent& extent = state_->checked(index, data);
  check(extent.written.has_value(), "scratch extent {} is read before it was written", index);
  check(extent.written->first == data.size(), "scratch extent {}: {} bytes were written, {} are read", index,
        extent.written->first, data.size());
  if (data.empty()) {
    done(nullptr);
    return 0;
  }
  const State& state = *state_;
  auto verify = [&extent, &state, index, data, done = std::move(done)](std::exception_ptr error) {
    const std::uint64_t got = error ? 0 : hash64(data.data(), data.size());
    if (!error && got != extent.written->second) {
      error = std::make_exception_ptr(Error(
          ErrorCode::corrupt,
          fmt::format(
              "{}: scratch extent {}, {} bytes at offset {}: wanted checksum {:016x} as written, got {:016x}",
              state.files[extent.file_index].path(), index, data.size(), extent.offset_bytes,
              extent.written->second, got)));
    }
    done(std::move(error));
  };
  return state_->queue.submit({IoDirection::read, priority, extent.file, extent.offset_bytes, data.data(),
                               round_up(data.size(), kBlockBytes), std::move(verify)});
}

}  // namespace terrace
