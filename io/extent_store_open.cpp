// Opening to write.
#include <chrono>

#include "io/store_files.h"
#include "io/store_impl.h"
#include "src/base/fail.h"

namespace terrace {

bool ExtentStore::exists(const std::string& path) {
  return file_exists(join(path, kManifestName));
}

std::unique_ptr<ExtentStore> ExtentStore::open(IoQueue& queue, const std::string& path,
                                               const StoreOpenOptions& options) {
  StoreImpl::Parts parts;
  parts.directory = resolve(path);
  parts.manifest = read_manifest(parts.directory);
  parts.files = open_files(queue, parts.directory, parts.manifest, DataFile::Mode::open);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(options.lock_wait_ms);
  for (const DataFile& file : parts.files.data)
    parts.locks.take(file.fd(), file.path(), parts.directory, deadline);
  note_holder(parts.directory);

  // What a killed run wrote may still lie in a disk's cache: nothing is judged before it lasts.
  for (const IoFile file : parts.files.data_ids) queue.flush(file);
  queue.flush(parts.files.record_id);

  parts.record = read_record(queue, parts.files, parts.manifest);
  parts.trailers = read_trailers(queue, parts.files, parts.manifest);
  Cut cut = choose_cut(parts.record, identities(parts.manifest), parts.trailers);
  check_cut(parts.manifest, parts.files, parts.record, cut, parts.trailers);
  parts.cut = std::move(cut.extents);
  if (const int extent = parts.cut.back(); extent != kNoExtent) {
    parts.run_state = read_run_state(queue, parts.files, parts.manifest, extent,
                                     parts.trailers.back()[static_cast<std::size_t>(extent)].trailer);
  }
  auto store = std::make_unique<StoreImpl>(queue, std::move(parts));
  store->begin_run();
  return store;
}

}  // namespace terrace
