#include "io/store_manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "src/base/fail.h"
#include "src/base/units.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kKind = "terrace store";

std::string checksum_line(const Hash128& checksum) {
  return fmt::format(",\n \"checksum\": \"{}\"\n}}\n", to_hex(checksum));
}

Hash128 from_hex(const std::string& text) {
  if (text.size() != 32) throw std::invalid_argument("an id of 32 digits was wanted");
  return {std::stoull(text.substr(16), nullptr, 16), std::stoull(text.substr(0, 16), nullptr, 16)};
}

Json to_json(const StoreSegment& segment) {
  Json json = Json::array({segment.tensor, segment.begin, segment.end});
  if (!segment.slice.empty()) json.push_back(segment.slice);
  return json;
}

StoreSegment to_segment(const Json& json) {
  StoreSegment segment{json.at(0), json.at(1), json.at(2)};
  if (json.size() > 3) segment.slice = json.at(3);
  return segment;
}

Json to_json(const ExtentPlace& place, bool two) {
  Json json;
  json["path"] = place.path;
  json["offsets"] = Json::array({place.offset_bytes[0]});
  if (two) json["offsets"].push_back(place.offset_bytes[1]);
  return json;
}

ExtentPlace to_place(const Json& json, bool two) {
  ExtentPlace place;
  place.path = json.at("path");
  for (std::size_t i = 0; i < (two ? 2u : 1u); ++i) place.offset_bytes[i] = json.at("offsets").at(i);
  return place;
}

void check_places(const Manifest& manifest) {
  const std::size_t extents = manifest.two_extents ? 2 : 1;
  for (std::size_t i = 0; i < manifest.places.size(); ++i) {
    const bool run_state = i == manifest.shape.chunks.size();
    const std::uint64_t bytes =
        run_state ? kRunStateExtentBytes : manifest.shape.chunks[i].payload_bytes + kTrailerBytes;
    const ExtentPlace& place = manifest.places[i];
    if (place.path >= manifest.paths.size())
      throw std::invalid_argument("an extent lies on a path that is not there");
    for (std::size_t k = 0; k < extents; ++k) {
      if (place.offset_bytes[k] + bytes > manifest.paths[place.path].file_bytes) {
        throw std::invalid_argument("an extent ends behind its file");
      }
    }
  }
}

Manifest from_json(const Json& json) {
  if (json.at("kind") != kKind) throw std::invalid_argument("it is not a store's manifest");
  if (json.at("format") != kStoreFormat) {
    throw std::invalid_argument(
        fmt::format("format {} was written, {} is understood", json.at("format").dump(), kStoreFormat));
  }
  Manifest manifest;
  manifest.id = from_hex(json.at("id"));
  manifest.two_extents = json.at("extents") == 2;
  manifest.shape.chunk_numel = json.at("chunk_numel");
  manifest.shape.model = json.at("model");
  for (const Json& stream : json.at("streams")) {
    manifest.shape.streams.push_back({stream.at("name"), stream.at("dtype")});
  }
  for (const Json& path : json.at("paths")) {
    manifest.paths.push_back({path.at("directory"), path.at("file"), path.at("bytes")});
  }
  for (const Json& json_chunk : json.at("chunks")) {
    StoreChunk chunk;
    chunk.payload_bytes = json_chunk.at("payload_bytes");
    for (const Json& segment : json_chunk.at("segments")) chunk.segments.push_back(to_segment(segment));
    manifest.shape.chunks.push_back(std::move(chunk));
    manifest.places.push_back(to_place(json_chunk, manifest.two_extents));
  }
  if (manifest.two_extents) manifest.places.push_back(to_place(json.at("run_state"), true));
  check_shape(manifest.shape);
  check_places(manifest);
  return manifest;
}

}  // namespace

std::string describe_segments(std::span<const StoreSegment> segments, std::size_t limit) {
  std::string text;
  for (std::size_t i = 0; i < std::min(limit, segments.size()); ++i) {
    const StoreSegment& s = segments[i];
    text += fmt::format("{}{}{}{}[{}:{}]", i == 0 ? "" : ", ", s.tensor, s.slice.empty() ? "" : "/", s.slice,
                        s.begin, s.end);
  }
  if (segments.size() > limit) text += fmt::format(" and {} more", segments.size() - limit);
  return text;
}

void check_shape(const StoreShape& shape) {
  using Range = std::tuple<std::string, std::string, std::uint64_t, std::uint64_t, std::size_t>;
  std::vector<Range> ranges;
  for (std::size_t i = 0; i < shape.chunks.size(); ++i) {
    const StoreChunk& chunk = shape.chunks[i];
    if (chunk.segments.empty() || chunk.segments.size() > kMaxSegments) {
      fail(ErrorCode::invalid_argument, "store chunk {}: wanted 1 to {} segments, got {}; {}", i,
           kMaxSegments, chunk.segments.size(), "a smaller chunk holds fewer");
    }
    if (chunk.payload_bytes % 4096 != 0) {
      fail(ErrorCode::invalid_argument,
           "store chunk {}: wanted a payload of a multiple of 4096 bytes, got {}", i, chunk.payload_bytes);
    }
    for (const StoreSegment& s : chunk.segments) {
      if (s.begin >= s.end) {
        fail(ErrorCode::invalid_argument, "store chunk {}: segment {} is empty", i,
             describe_segments({&s, 1}));
      }
      ranges.emplace_back(s.tensor, s.slice, s.begin, s.end, i);
    }
  }
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    const auto& [tensor, slice, begin, end, chunk] = ranges[i];
    const auto& [before_tensor, before_slice, before_begin, before_end, before_chunk] = ranges[i - 1];
    if (tensor == before_tensor && slice == before_slice && begin < before_end) {
      fail(ErrorCode::invalid_argument, "store chunks {} and {} both hold element {} of {}{}{}", before_chunk,
           chunk, begin, tensor, slice.empty() ? "" : "/", slice);
    }
  }
}

void place_extents(Manifest& manifest, std::span<const VolumeRoom> volumes) {
  const std::uint64_t copies = manifest.two_extents ? 2 : 1;
  std::uint64_t wanted = manifest.two_extents ? 2 * kRunStateExtentBytes : 0;
  std::uint64_t there = 0;
  for (const StoreChunk& chunk : manifest.shape.chunks)
    wanted += copies * (chunk.payload_bytes + kTrailerBytes);
  for (const VolumeRoom& volume : volumes) there += volume.bytes;

  std::vector<std::uint64_t> used(volumes.size(), 0);
  const auto place = [&](std::uint64_t extent_bytes, bool least_used) {
    std::size_t best = volumes.size();
    for (std::size_t v = 0; v < volumes.size(); ++v) {
      if (used[v] + copies * extent_bytes > volumes[v].bytes) continue;
      if (best == volumes.size() || (least_used && used[v] < used[best])) best = v;
    }
    if (best == volumes.size()) {
      std::string list;
      for (const VolumeRoom& v : volumes) {
        list += fmt::format("{}{}: {} ({} bytes)", list.empty() ? "" : ", ", v.directory,
                            format_bytes(v.bytes), v.bytes);
      }
      fail(ErrorCode::does_not_fit,
           "the store's extents need {} ({} bytes), each chunk whole on one path; there are {} ({} bytes) on "
           "{}",
           format_bytes(wanted), wanted, format_bytes(there), there, list);
    }
    ExtentPlace extent;
    extent.path = static_cast<std::uint32_t>(best);
    for (std::size_t k = 0; k < copies; ++k) {
      extent.offset_bytes[k] = used[best];
      used[best] += extent_bytes;
    }
    return extent;
  };

  ExtentPlace run_state;
  if (manifest.two_extents) run_state = place(kRunStateExtentBytes, false);
  manifest.places.clear();
  for (const StoreChunk& chunk : manifest.shape.chunks) {
    manifest.places.push_back(place(chunk.payload_bytes + kTrailerBytes, true));
  }
  if (manifest.two_extents) manifest.places.push_back(run_state);
  manifest.paths.clear();
  for (std::size_t v = 0; v < volumes.size(); ++v) {
    manifest.paths.push_back({volumes[v].directory,
                              fmt::format("terrace-{}-{}.extents", to_hex(manifest.id).substr(0, 16), v),
                              used[v]});
  }
}

std::string manifest_text(const Manifest& manifest) {
  Json json;  // keys come out sorted, so the checksum is added by hand as the last
  json["kind"] = kKind;
  json["format"] = kStoreFormat;
  json["id"] = to_hex(manifest.id);
  json["extents"] = manifest.two_extents ? 2 : 1;
  json["chunk_numel"] = manifest.shape.chunk_numel;
  json["model"] = manifest.shape.model;
  json["streams"] = Json::array();
  for (const StoreStream& stream : manifest.shape.streams) {
    json["streams"].push_back({{"name", stream.name}, {"dtype", stream.dtype}});
  }
  json["paths"] = Json::array();
  for (const ManifestPath& path : manifest.paths) {
    json["paths"].push_back({{"directory", path.directory}, {"file", path.file}, {"bytes", path.file_bytes}});
  }
  json["chunks"] = Json::array();
  for (std::size_t i = 0; i < manifest.shape.chunks.size(); ++i) {
    const StoreChunk& chunk = manifest.shape.chunks[i];
    Json entry = to_json(manifest.places[i], manifest.two_extents);
    entry["payload_bytes"] = chunk.payload_bytes;
    entry["segments"] = Json::array();
    for (const StoreSegment& segment : chunk.segments) entry["segments"].push_back(to_json(segment));
    json["chunks"].push_back(std::move(entry));
  }
  if (manifest.two_extents) json["run_state"] = to_json(manifest.places.back(), true);
  std::string text;
  try {
    text = json.dump(1);
  } catch (const Json::exception& error) {
    fail(ErrorCode::invalid_argument, "a store's names and model must be UTF-8: {}", error.what());
  }
  text.resize(text.size() - 2);  // the closing "\n}"
  return text + checksum_line(hash128(text));
}

Manifest parse_manifest(std::string_view text, const std::string& file) {
  const std::size_t line_bytes = checksum_line({}).size();
  if (text.size() <= line_bytes) {
    fail(ErrorCode::corrupt, "{}: the manifest is cut off: {} bytes", file, text.size());
  }
  const std::string_view body = text.substr(0, text.size() - line_bytes);
  const std::string wanted = checksum_line(hash128(body));
  if (text.substr(body.size()) != wanted) {
    fail(ErrorCode::corrupt, "{}: the manifest is damaged: it does not end in its checksum {}", file,
         to_hex(hash128(body)));
  }
  try {
    return from_json(Json::parse(std::string(body) + "}"));
  } catch (const std::exception& error) {
    fail(ErrorCode::corrupt, "{}: {}", file, error.what());
  }
}

}  // namespace terrace
