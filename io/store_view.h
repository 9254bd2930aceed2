// What stands on a store's paths: its files opened, its record and trailers read, its last commit chosen.
#pragma once

#include <string>
#include <vector>

#include "io/data_file.h"
#include "io/io_queue.h"
#include "io/store_cut.h"
#include "io/store_manifest.h"

namespace terrace {

// Reads and checks the manifest of the store in `directory`. Throws not_found (also for a creation that was
// killed), corrupt.
Manifest read_manifest(const std::string& directory);

// A manifest's directory as seen from where the store lies now.
std::string path_of(const std::string& directory, const ManifestPath& path);

struct StoreFiles {
  std::vector<DataFile> data;    // of each path
  std::vector<IoFile> data_ids;  // as the queue knows them
  std::vector<DataFile> record;  // one
  IoFile record_id = 0;
};

// Opens every file and registers it. Throws not_found naming each missing path with the tensors that lie on
// it, corrupt for a file that is shorter than it was made.
StoreFiles open_files(IoQueue& queue, const std::string& directory, const Manifest& manifest,
                      DataFile::Mode mode);

// What the manifest says of one extent; index chunks.size() is the run state.
std::uint64_t extent_bytes(const Manifest& manifest, std::size_t chunk);
std::vector<Hash128> identities(const Manifest& manifest);
// The trailer that `extent` of a chunk must carry, as far as the manifest knows it.
Trailer wanted_trailer(const Manifest& manifest, const Hash128& identity, std::size_t chunk, int extent);
// "chunk 3 (h.0.w[0:4096])", or "the run state".
std::string describe_chunk(const Manifest& manifest, std::size_t chunk);
// The same with path and offset of an extent.
std::string describe_extent(const Manifest& manifest, const StoreFiles& files, std::size_t chunk, int extent);

// The newer whole record; a warning is logged for a damaged older one. Throws corrupt naming the record.
Record read_record(IoQueue& queue, const StoreFiles& files, const Manifest& manifest);

std::vector<ChunkTrailers> read_trailers(IoQueue& queue, const StoreFiles& files, const Manifest& manifest);

// Throws corrupt for a cut that is not the record's: names the chunks whose trailers are invalid.
void check_cut(const Manifest& manifest, const StoreFiles& files, const Record& record, const Cut& cut,
               const std::vector<ChunkTrailers>& trailers);

// The committed run state, checked.
std::string read_run_state(IoQueue& queue, const StoreFiles& files, const Manifest& manifest, int extent,
                           const Trailer& trailer);

}  // namespace terrace
