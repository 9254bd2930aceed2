#include "io/store_view.h"

#include <filesystem>
#include <set>

#include "io/store_files.h"
#include "src/base/fail.h"
#include "src/base/log.h"
#include "src/base/units.h"

namespace terrace {
namespace {

constexpr std::size_t kNamed = 8;  // chunks or tensors that a message lists

std::string tensors_on(const Manifest& manifest, std::uint32_t path) {
  std::set<std::string> tensors;
  for (std::size_t i = 0; i < manifest.shape.chunks.size(); ++i) {
    if (manifest.places[i].path != path) continue;
    for (const StoreSegment& segment : manifest.shape.chunks[i].segments) tensors.insert(segment.tensor);
  }
  std::string text;
  std::size_t named = 0;
  for (const std::string& tensor : tensors) {
    if (named == kNamed) break;
    text += fmt::format("{}{}", named++ == 0 ? "" : ", ", tensor);
  }
  if (tensors.size() > named) text += fmt::format(" and {} more", tensors.size() - named);
  return tensors.empty() ? "no tensors" : text;
}

}  // namespace

Manifest read_manifest(const std::string& directory) {
  const std::string file = join(directory, kManifestName);
  if (!file_exists(file)) {
    if (file_exists(join(directory, kUnfinishedName))) {
      fail(ErrorCode::not_found,
           "{}: the creation of this store has not ended ({} holds it now or was killed); {}", directory,
           kUnfinishedName, "creating it again reclaims what a killed one left");
    }
    fail(ErrorCode::not_found, "{}: there is no store ({} does not exist)", directory, file);
  }
  return parse_manifest(read_text(file), file);
}

std::string path_of(const std::string& directory, const ManifestPath& path) {
  if (path.directory == ".") return directory;
  return (std::filesystem::path(directory) / path.directory).lexically_normal().string();
}

StoreFiles open_files(IoQueue& queue, const std::string& directory, const Manifest& manifest,
                      DataFile::Mode mode) {
  std::string missing;
  for (std::size_t i = 0; i < manifest.paths.size(); ++i) {
    const std::string file = join(path_of(directory, manifest.paths[i]), manifest.paths[i].file);
    if (file_exists(file)) continue;
    missing += fmt::format("{}{} is missing, and with it {}", missing.empty() ? "" : "; ", file,
                           tensors_on(manifest, static_cast<std::uint32_t>(i)));
  }
  if (!missing.empty()) fail(ErrorCode::not_found, "the store {}: {}", directory, missing);
  StoreFiles files;
  for (const ManifestPath& path : manifest.paths) {
    DataFile file(join(path_of(directory, path), path.file), mode);
    if (const std::uint64_t got = file.size_bytes(); got < path.file_bytes) {
      fail(ErrorCode::corrupt, "{} is cut off: wanted {} bytes, got {}", file.path(), path.file_bytes, got);
    }
    files.data_ids.push_back(queue.register_file(file.fd(), file.path()));
    files.data.push_back(std::move(file));
  }
  DataFile record(join(directory, kRecordName), mode);
  if (const std::uint64_t got = record.size_bytes(); got < kRecordPlaces * kRecordBytes) {
    fail(ErrorCode::corrupt, "{} is cut off: wanted {} bytes, got {}", record.path(),
         kRecordPlaces * kRecordBytes, got);
  }
  files.record_id = queue.register_file(record.fd(), record.path());
  files.record.push_back(std::move(record));
  return files;
}

std::uint64_t extent_bytes(const Manifest& manifest, std::size_t chunk) {
  if (chunk == manifest.shape.chunks.size()) return kRunStateExtentBytes;
  return manifest.shape.chunks[chunk].payload_bytes + kTrailerBytes;
}

std::vector<Hash128> identities(const Manifest& manifest) {
  std::vector<Hash128> result;
  for (const StoreChunk& chunk : manifest.shape.chunks) result.push_back(identity_of(chunk.segments));
  if (manifest.two_extents) result.push_back(run_state_identity());
  return result;
}

Trailer wanted_trailer(const Manifest& manifest, const Hash128& identity, std::size_t chunk, int extent) {
  Trailer wanted;
  wanted.store_id = manifest.id;
  wanted.identity = identity;
  wanted.extent = static_cast<std::uint32_t>(extent);
  if (chunk < manifest.shape.chunks.size()) {
    wanted.payload_bytes = manifest.shape.chunks[chunk].payload_bytes;
    wanted.segment_steps.resize(manifest.shape.chunks[chunk].segments.size());
  }
  return wanted;
}

std::string describe_chunk(const Manifest& manifest, std::size_t chunk) {
  if (chunk == manifest.shape.chunks.size()) return "the run state";
  return fmt::format("chunk {} ({})", chunk, describe_segments(manifest.shape.chunks[chunk].segments));
}

std::string describe_extent(const Manifest& manifest, const StoreFiles& files, std::size_t chunk,
                            int extent) {
  const ExtentPlace& place = manifest.places[chunk];
  return fmt::format("{}: {} at offset {}", describe_chunk(manifest, chunk), files.data[place.path].path(),
                     place.offset_bytes[static_cast<std::size_t>(extent)]);
}

Record read_record(IoQueue& queue, const StoreFiles& files, const Manifest& manifest) {
  const AlignedBlock blocks(kRecordPlaces * kRecordBytes);
  transfer(queue, IoDirection::read, files.record_id, 0, blocks.span());
  std::array<RecordRead, kRecordPlaces> places;
  for (std::size_t p = 0; p < kRecordPlaces; ++p) {
    places[p] = decode_record(blocks.span().subspan(p * kRecordBytes).first<kRecordBytes>(), manifest.id);
  }
  RecordChoice choice = choose_record(places);
  const std::string& path = files.record.front().path();
  if (!choice.record) fail(ErrorCode::corrupt, "the record {}: {}", path, choice.why);
  if (!choice.why.empty()) logger()->warn("the record {}: {}; the last commit is whole", path, choice.why);
  return *std::move(choice.record);
}

std::vector<ChunkTrailers> read_trailers(IoQueue& queue, const StoreFiles& files, const Manifest& manifest) {
  constexpr std::size_t kBatch = 128;
  const std::vector<Hash128> ids = identities(manifest);
  std::vector<ChunkTrailers> trailers(ids.size());
  const AlignedBlock blocks(kBatch * 2 * kTrailerBytes);
  const auto block = [&](std::size_t i, int extent) {
    return blocks.span()
        .subspan((2 * i + static_cast<std::size_t>(extent)) * kTrailerBytes)
        .first<kTrailerBytes>();
  };
  for (std::size_t first = 0; first < ids.size(); first += kBatch) {
    const std::size_t count = std::min(kBatch, ids.size() - first);
    TransferGroup group;
    for (std::size_t i = 0; i < count; ++i) {
      const ExtentPlace& place = manifest.places[first + i];
      for (int extent = 0; extent < 2; ++extent) {
        IoRequest request;
        request.direction = IoDirection::read;
        request.file = files.data_ids[place.path];
        request.offset_bytes = place.offset_bytes[static_cast<std::size_t>(extent)] +
                               extent_bytes(manifest, first + i) - kTrailerBytes;
        request.data = block(i, extent).data();
        request.bytes = kTrailerBytes;
        request.done = group.add();
        queue.submit(std::move(request));
      }
    }
    group.wait();
    for (std::size_t i = 0; i < count; ++i) {
      for (int extent = 0; extent < 2; ++extent) {
        trailers[first + i][static_cast<std::size_t>(extent)] =
            decode_trailer(block(i, extent), wanted_trailer(manifest, ids[first + i], first + i, extent));
      }
    }
  }
  return trailers;
}

void check_cut(const Manifest& manifest, const StoreFiles& files, const Record& record, const Cut& cut,
               const std::vector<ChunkTrailers>& trailers) {
  const auto list = [](std::size_t total, std::size_t i, std::string text) {
    if (i < kNamed) return (i == 0 ? "" : "; ") + std::move(text);
    return i == kNamed ? fmt::format("; and {} more", total - kNamed) : std::string();
  };
  const std::string& record_path = files.record.front().path();
  if (!cut.from_later.empty()) {
    std::string named;
    for (std::size_t i = 0; i < cut.from_later.size(); ++i) {
      named += list(cut.from_later.size(), i, describe_chunk(manifest, cut.from_later[i]));
    }
    fail(ErrorCode::corrupt,
         "the record {} is older than what the store holds: it knows epochs up to {}; later: {}", record_path,
         record.epoch, named);
  }
  const std::size_t run_state = manifest.shape.chunks.size();
  const bool whole = cut.extents[run_state] != kNoExtent || !record.committed_step;
  if (cut.sum == record.sum && whole) return;
  std::string named;
  for (std::size_t i = 0; i < cut.damaged.size(); ++i) {
    const std::size_t chunk = cut.damaged[i];
    const int extent = trailers[chunk][0].state == TrailerRead::State::damaged ? 0 : 1;
    named += list(cut.damaged.size(), i,
                  fmt::format("{}: {}", describe_extent(manifest, files, chunk, extent),
                              trailers[chunk][static_cast<std::size_t>(extent)].why));
  }
  if (named.empty()) {
    named = "none; a committed extent is blank or holds an older state: of ";
    std::vector<std::size_t> blank;
    for (std::size_t chunk = 0; chunk < cut.extents.size(); ++chunk) {
      const bool any_blank = trailers[chunk][0].state == TrailerRead::State::blank ||
                             trailers[chunk][1].state == TrailerRead::State::blank;
      if (any_blank) blank.push_back(chunk);
    }
    for (std::size_t i = 0; i < blank.size(); ++i) {
      named += list(blank.size(), i, describe_chunk(manifest, blank[i]));
    }
    if (blank.empty()) named += "any chunk";
  }
  fail(ErrorCode::corrupt,
       "the store does not add up to the commit of step {} that {} tells of (sum wanted {}, got "
       "{}); chunks with invalid trailers: {}",
       record.committed_step ? std::to_string(*record.committed_step) : "none", record_path,
       to_hex(record.sum), to_hex(cut.sum), named);
}

std::string read_run_state(IoQueue& queue, const StoreFiles& files, const Manifest& manifest, int extent,
                           const Trailer& trailer) {
  const std::size_t chunk = manifest.shape.chunks.size();
  const ExtentPlace& place = manifest.places[chunk];
  if (trailer.payload_bytes > kMaxRunStateBytes) {
    fail(ErrorCode::corrupt, "{}: it holds {} bytes, wanted at most {}",
         describe_extent(manifest, files, chunk, extent), trailer.payload_bytes, kMaxRunStateBytes);
  }
  const std::uint64_t bytes = round_up(trailer.payload_bytes, 4096) + kTrailerBytes;
  const AlignedBlock block(bytes);
  transfer(queue, IoDirection::read, files.data_ids[place.path],
           place.offset_bytes[static_cast<std::size_t>(extent)] + kRunStateExtentBytes - bytes, block.span());
  if (const std::string why = check_extent(block.span(), trailer); !why.empty()) {
    fail(ErrorCode::corrupt, "{}: {}", describe_extent(manifest, files, chunk, extent), why);
  }
  return {reinterpret_cast<const char*>(block.data()), trailer.payload_bytes};
}

}  // namespace terrace
