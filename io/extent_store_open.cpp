// Opening to write.
#include <chrono>

#include "io/store_files.h"
#include "io/store_impl.h"
#include "src/base/fail.h"

namespace terrace {

bool ExtentStore::exists(const std::string& path) {
  return file_exists(join(path, kManifestName));
}

namespace {

// The store's manifest, its files opened and locked; retries for lock_wait_ms.
StoreImpl::Parts open_locked(IoQueue& queue, const std::string& path, const StoreOpenOptions& options,
                             bool shared) {
  StoreImpl::Parts parts;
  parts.directory = resolve(path);
  parts.manifest = read_manifest(parts.directory);
  parts.files = open_files(queue, parts.directory, parts.manifest, DataFile::Mode::open);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(options.lock_wait_ms);
  for (const DataFile& file : parts.files.data)
    parts.locks.take(file.fd(), file.path(), parts.directory, deadline, shared);
  return parts;
}

// Files, record and trailers of the store in parts.directory, the cut chosen and checked.
void read_all(IoQueue& queue, StoreImpl::Parts& parts) {
  parts.record = read_record(queue, parts.files, parts.manifest);
  parts.trailers = read_trailers(queue, parts.files, parts.manifest);
  Cut cut = choose_cut(parts.record, identities(parts.manifest), parts.trailers);
  check_cut(parts.manifest, parts.files, parts.record, cut, parts.trailers);
  parts.cut = std::move(cut.extents);
  if (const int extent = parts.cut.back(); extent != kNoExtent) {
    parts.run_state = read_run_state(queue, parts.files, parts.manifest, extent,
                                     parts.trailers.back()[static_cast<std::size_t>(extent)].trailer);
  }
}

}  // namespace

std::unique_ptr<ExtentStore> ExtentStore::open(IoQueue& queue, const std::string& path,
                                               const StoreOpenOptions& options) {
  StoreImpl::Parts parts = open_locked(queue, path, options, false);
  note_holder(parts.directory);

  // What a killed run wrote may still lie in a disk's cache: nothing is judged before it lasts.
  for (const IoFile file : parts.files.data_ids) queue.flush(file);
  queue.flush(parts.files.record_id);

  read_all(queue, parts);
  auto store = std::make_unique<StoreImpl>(queue, std::move(parts));
  store->begin_run();
  return store;
}

std::unique_ptr<ExtentStore> ExtentStore::join_run(IoQueue& queue, const std::string& path,
                                                   std::uint64_t epoch, const std::vector<bool>& own,
                                                   const StoreOpenOptions& options) {
  StoreImpl::Parts parts = open_locked(queue, path, options, true);
  read_all(queue, parts);
  if (parts.record.epoch != epoch) {
    fail(ErrorCode::busy, "the store {}: another run has opened it (epoch {}, this run's is {})",
         parts.directory, parts.record.epoch, epoch);
  }
  auto store = std::make_unique<StoreImpl>(queue, std::move(parts));
  store->become_member(own);
  return store;
}

}  // namespace terrace
