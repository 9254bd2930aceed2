#include "io/store_trailer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "src/base/fail.h"

namespace terrace {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

// docs/store-format.md, "Trailer".
constexpr std::array<char, 8> kMagic = {'T', 'E', 'R', 'R', 'X', 'T', '0', '1'};
constexpr std::size_t kSegmentsAt = 96;
constexpr std::size_t kChecksumAt = kTrailerBytes - sizeof(Hash128);

struct Header {
  std::array<char, 8> magic;
  Hash128 store_id;
  Hash128 identity;
  std::uint64_t epoch;
  std::uint64_t step;
  std::uint64_t payload_bytes;
  Hash128 payload_checksum;
  std::uint32_t extent;
  std::uint32_t segments;
  std::uint64_t reserved;
};
static_assert(sizeof(Header) == kSegmentsAt);
static_assert(kSegmentsAt + kMaxSegments * sizeof(std::uint64_t) == kChecksumAt);

void append(std::string& bytes, std::uint64_t value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void append(std::string& bytes, const std::string& text) {
  append(bytes, std::uint64_t{text.size()});
  bytes += text;
}

TrailerRead damaged(std::string why) {
  TrailerRead read;
  read.state = TrailerRead::State::damaged;
  read.why = std::move(why);
  return read;
}

}  // namespace

Hash128 identity_of(std::span<const StoreSegment> segments) {
  std::string bytes = "chunk";
  append(bytes, std::uint64_t{segments.size()});
  for (const StoreSegment& segment : segments) {
    append(bytes, segment.tensor);
    append(bytes, segment.slice);
    append(bytes, segment.begin);
    append(bytes, segment.end);
  }
  return hash128(bytes);
}

Hash128 run_state_identity() {
  return hash128("run state");
}

Hash128 cut_term(const Hash128& identity, std::uint64_t epoch, std::uint64_t step) {
  const std::array<std::uint64_t, 4> words = {identity.low, identity.high, epoch, step};
  return hash128(words.data(), sizeof(words));
}

Hash128 encode_trailer(const Trailer& trailer, std::span<std::byte, kTrailerBytes> block) {
  check(trailer.segment_steps.size() <= kMaxSegments, "a trailer with {} segments",
        trailer.segment_steps.size());
  std::fill(block.begin(), block.end(), std::byte{0});
  Header header{};
  header.magic = kMagic;
  header.store_id = trailer.store_id;
  header.identity = trailer.identity;
  header.epoch = trailer.epoch;
  header.step = trailer.step;
  header.payload_bytes = trailer.payload_bytes;
  header.payload_checksum = trailer.payload_checksum;
  header.extent = trailer.extent;
  header.segments = static_cast<std::uint32_t>(trailer.segment_steps.size());
  std::memcpy(block.data(), &header, sizeof(header));
  if (!trailer.segment_steps.empty()) {
    std::memcpy(block.data() + kSegmentsAt, trailer.segment_steps.data(), trailer.segment_steps.size() * 8);
  }
  const Hash128 checksum = hash128(block.data(), kChecksumAt);
  std::memcpy(block.data() + kChecksumAt, &checksum, sizeof(checksum));
  return checksum;
}

TrailerRead decode_trailer(std::span<const std::byte, kTrailerBytes> block, const Trailer& wanted) {
  if (std::all_of(block.begin(), block.end(), [](std::byte b) { return b == std::byte{0}; })) return {};
  Header header;
  std::memcpy(&header, block.data(), sizeof(header));
  if (header.magic != kMagic) return damaged("no trailer stands there");
  TrailerRead read;
  std::memcpy(&read.checksum, block.data() + kChecksumAt, sizeof(read.checksum));
  const Hash128 got = hash128(block.data(), kChecksumAt);
  if (got != read.checksum) {
    return damaged(fmt::format("trailer checksum: wanted {}, got {}", to_hex(read.checksum), to_hex(got)));
  }
  if (header.store_id != wanted.store_id) {
    return damaged(
        fmt::format("it belongs to store {}, wanted {}", to_hex(header.store_id), to_hex(wanted.store_id)));
  }
  if (header.identity != wanted.identity) {
    return damaged(
        fmt::format("it belongs to chunk {}, wanted {}", to_hex(header.identity), to_hex(wanted.identity)));
  }
  if (header.extent != wanted.extent || header.segments != wanted.segment_steps.size()) {
    return damaged(fmt::format("it is extent {} with {} segments, wanted extent {} with {}", header.extent,
                               header.segments, wanted.extent, wanted.segment_steps.size()));
  }
  read.state = TrailerRead::State::valid;
  read.trailer.store_id = header.store_id;
  read.trailer.identity = header.identity;
  read.trailer.epoch = header.epoch;
  read.trailer.step = header.step;
  read.trailer.payload_bytes = header.payload_bytes;
  read.trailer.payload_checksum = header.payload_checksum;
  read.trailer.extent = header.extent;
  read.trailer.segment_steps.resize(header.segments);
  if (header.segments > 0) {
    std::memcpy(read.trailer.segment_steps.data(), block.data() + kSegmentsAt,
                header.segments * std::size_t{8});
  }
  return read;
}

std::string check_extent(std::span<const std::byte> extent, const Trailer& wanted) {
  const std::size_t payload_end = extent.size() - kTrailerBytes;
  const TrailerRead read = decode_trailer(extent.subspan(payload_end).first<kTrailerBytes>(), wanted);
  if (read.state == TrailerRead::State::blank) return "nothing was ever written there";
  if (read.state == TrailerRead::State::damaged) return read.why;
  const Trailer& got = read.trailer;
  if (got.epoch != wanted.epoch || got.step != wanted.step) {
    return fmt::format("it was written by epoch {} at step {}, wanted epoch {} and step {}", got.epoch,
                       got.step, wanted.epoch, wanted.step);
  }
  if (got.payload_bytes != wanted.payload_bytes || got.payload_bytes > payload_end) {
    return fmt::format("it holds {} bytes, wanted {}", got.payload_bytes, wanted.payload_bytes);
  }
  if (got.payload_checksum != wanted.payload_checksum) {
    return fmt::format("its trailer tells of another payload: checksum wanted {}, got {}",
                       to_hex(wanted.payload_checksum), to_hex(got.payload_checksum));
  }
  const Hash128 sum = hash128(extent.data(), got.payload_bytes);
  if (sum != wanted.payload_checksum) {
    return fmt::format("payload checksum: wanted {}, got {}", to_hex(wanted.payload_checksum), to_hex(sum));
  }
  return {};
}

}  // namespace terrace
