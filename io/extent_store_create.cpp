// Creation: the manifest is first written under the name of an unfinished creation and made to last; then
// come the files it names; the rename is the last step. What a killed creation left is thus always listed in
// one place.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <random>
#include <set>
#include <utility>

#include "io/store_files.h"
#include "io/store_impl.h"
#include "src/base/fail.h"
#include "src/base/log.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

Hash128 random_id() {
  std::random_device device;
  const auto word = [&] { return (std::uint64_t{device()} << 32) | device(); };
  return {word(), word()};
}

// The volume as the manifest names it: relative where the store and its data can be moved together.
std::string manifest_directory(const std::string& store, const std::string& volume) {
  const fs::path relative = fs::path(volume).lexically_relative(store);
  if (relative.empty() || *relative.begin() == "..") return volume;
  return relative.string();
}

class Creation {
 public:
  Creation(IoQueue& queue, const StoreOptions& options, const StoreShape& shape)
      : queue_(queue), volumes_(options.volumes), lock_wait_ms_(options.lock_wait_ms) {
    parts_.directory = resolve(options.path);
    parts_.manifest.id = random_id();
    parts_.manifest.two_extents = options.two_extents;
    parts_.manifest.shape = shape;
    if (volumes_.empty()) volumes_.push_back({parts_.directory, 0});
  }

  ~Creation() {
    if (!finished_) remove_all();
    manifest_lock_.release();
    if (manifest_fd_ >= 0) ::close(manifest_fd_);
  }
  Creation(const Creation&) = delete;
  Creation& operator=(const Creation&) = delete;

  StoreImpl::Parts run() {
    check_shape(parts_.manifest.shape);
    check_volumes();
    make_directory();
    refuse_existing();
    take_unfinished();
    refuse_existing();
    reclaim();
    place();
    write_manifest();
    make_files();
    if (parts_.manifest.two_extents) finish();
    finished_ = true;
    if (!parts_.manifest.two_extents) {
      parts_.manifest_fd = std::exchange(manifest_fd_, -1);
      parts_.manifest_lock = std::move(manifest_lock_);
    }
    parts_.locks = std::move(locks_);
    return std::move(parts_);
  }

 private:
  std::string unfinished() const { return join(parts_.directory, kUnfinishedName); }

  void check_volumes() {
    for (VolumePath& volume : volumes_) {
      if (resolve(volume.path) == parts_.directory) {
        volume.path = parts_.directory;
        continue;  // made with the store
      }
      if (!fs::is_directory(volume.path)) {
        fail(ErrorCode::not_found, "the store {}: the folder {} for its data does not exist",
             parts_.directory, volume.path);
      }
      volume.path = resolve(volume.path);
    }
  }

  void refuse_existing() const {
    if (!ExtentStore::exists(parts_.directory)) return;
    fail(ErrorCode::invalid_argument, "{} already holds a store; resume it, or remove it first",
         parts_.directory);
  }

  void make_directory() {
    for (fs::path p = parts_.directory; !fs::exists(p); p = p.parent_path()) {
      made_.push_back(p.string());
    }
    std::error_code error;
    fs::create_directories(parts_.directory, error);
    if (error) fail(ErrorCode::io_failed, "cannot make the folder {}: {}", parts_.directory, error.message());
    for (const std::string& path : made_) sync_directory(fs::path(path).parent_path().string());
  }

  // Opens and locks the file that marks an unfinished creation; makes it when it is not there.
  void take_unfinished() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(lock_wait_ms_);
    const std::string path = unfinished();
    while (true) {
      manifest_fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
      if (manifest_fd_ < 0) fail(ErrorCode::io_failed, "cannot create {}: {}", path, std::strerror(errno));
      manifest_lock_.take(manifest_fd_, path, parts_.directory, deadline);
      struct stat here {};
      struct stat there {};
      if (::fstat(manifest_fd_, &here) == 0 && ::stat(path.c_str(), &there) == 0 &&
          here.st_ino == there.st_ino && here.st_dev == there.st_dev) {
        break;
      }
      // Another creation ended between open and lock, and took the name with it.
      manifest_lock_.release();
      ::close(std::exchange(manifest_fd_, -1));
      refuse_existing();
    }
    mine_ = true;
    note_holder(parts_.directory);
  }

  // Removes what the unfinished creation that was found had made.
  void reclaim() {
    const std::string text = read_text(unfinished());
    if (text.empty()) return;
    try {
      const Manifest old = parse_manifest(text, unfinished());
      logger()->warn("{}: an earlier creation of this store was killed; its files are removed",
                     parts_.directory);
      std::set<std::string> folders;
      for (const ManifestPath& path : old.paths) {
        const std::string folder = path_of(parts_.directory, path);
        ::unlink(join(folder, path.file).c_str());
        if (fs::is_directory(folder)) folders.insert(folder);
      }
      ::unlink(join(parts_.directory, kRecordName).c_str());
      for (const std::string& folder : folders) sync_directory(folder);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::corrupt) throw;
      // Killed while the list was written: nothing else had been made.
    }
    if (::ftruncate(manifest_fd_, 0) != 0) {
      fail(ErrorCode::io_failed, "cannot empty {}: {}", unfinished(), std::strerror(errno));
    }
  }

  void place() {
    std::vector<VolumeRoom> rooms;
    for (const VolumePath& volume : volumes_) {
      const std::uint64_t free = free_bytes(volume.path);
      rooms.push_back({manifest_directory(parts_.directory, volume.path),
                       volume.size_bytes == 0 ? free : std::min(volume.size_bytes, free)});
    }
    place_extents(parts_.manifest, rooms);
  }

  void write_manifest() {
    std::string text = manifest_text(parts_.manifest);
    const IoFile file = queue_.register_file(manifest_fd_, unfinished());
    transfer(queue_, IoDirection::write, file, 0, std::as_writable_bytes(std::span(text)));
    queue_.flush(file);
    sync_directory(parts_.directory);
  }

  void make_files() {
    StoreFiles& files = parts_.files;
    const auto deadline = std::chrono::steady_clock::now();
    for (const ManifestPath& path : parts_.manifest.paths) {
      const std::string folder = path_of(parts_.directory, path);
      files.data.emplace_back(join(folder, path.file), DataFile::Mode::create);
      DataFile& file = files.data.back();
      locks_.take(file.fd(), file.path(), parts_.directory, deadline);
      file.allocate(path.file_bytes);
      files.data_ids.push_back(queue_.register_file(file.fd(), file.path()));
      queue_.flush(files.data_ids.back());
      sync_directory(folder);
    }
    if (!parts_.manifest.two_extents) return;
    files.record.emplace_back(join(parts_.directory, kRecordName), DataFile::Mode::create);
    files.record.back().allocate(kRecordPlaces * kRecordBytes);
    files.record_id = queue_.register_file(files.record.back().fd(), files.record.back().path());
    parts_.record.store_id = parts_.manifest.id;
    parts_.record.sequence = 1;
    parts_.record.epoch = 1;
    parts_.record.process_id = static_cast<std::uint64_t>(::getpid());
    parts_.record.epochs = {{1, {}}};
    const AlignedBlock block(kRecordBytes);
    encode_record(parts_.record, block.span().first<kRecordBytes>());
    transfer(queue_, IoDirection::write, files.record_id, kRecordBytes, block.span());
    queue_.flush(files.record_id);
    sync_directory(parts_.directory);
  }

  void finish() {
    const std::string path = join(parts_.directory, kManifestName);
    if (::rename(unfinished().c_str(), path.c_str()) != 0) {
      fail(ErrorCode::io_failed, "cannot rename {} to {}: {}", unfinished(), path, std::strerror(errno));
    }
    finished_ = true;
    sync_directory(parts_.directory);
  }

  void remove_all() noexcept {
    if (mine_) {
      for (const DataFile& file : parts_.files.data) remove_data_file(file);
      for (const DataFile& file : parts_.files.record) remove_data_file(file);
      ::unlink(join(parts_.directory, kHolderName).c_str());
      ::unlink(unfinished().c_str());
    }
    for (const std::string& path : made_) ::rmdir(path.c_str());
  }

  IoQueue& queue_;
  std::vector<VolumePath> volumes_;
  const std::uint32_t lock_wait_ms_;
  StoreImpl::Parts parts_;
  StoreLock locks_;  // after parts_: released before its files are closed
  int manifest_fd_ = -1;
  StoreLock manifest_lock_;
  std::vector<std::string> made_;  // folders, innermost first
  bool mine_ = false;              // the unfinished creation is locked by us
  bool finished_ = false;
};

}  // namespace

std::unique_ptr<ExtentStore> ExtentStore::create(IoQueue& queue, const StoreOptions& options,
                                                 const StoreShape& shape) {
  Creation creation(queue, options, shape);
  return std::make_unique<StoreImpl>(queue, creation.run());
}

}  // namespace terrace
