#include "io/store_record.h"

#include <algorithm>
#include <cstring>

#include "src/base/fail.h"

namespace terrace {
namespace {

// docs/store-format.md, "Record".
constexpr std::array<char, 8> kMagic = {'T', 'E', 'R', 'R', 'R', 'E', 'C', '1'};
constexpr std::size_t kSectorBytes = 512;
constexpr std::size_t kSectors = kRecordBytes / kSectorBytes;
constexpr std::size_t kSectorBody = kSectorBytes - 16;  // then: sequence, checksum
constexpr std::size_t kBodyBytes = kSectors * kSectorBody;
constexpr std::size_t kEpochsAt = 80;
constexpr std::size_t kChecksumAt = kBodyBytes - sizeof(Hash128);
constexpr std::uint64_t kNothing = ~std::uint64_t{0};

struct Header {
  std::array<char, 8> magic;
  Hash128 store_id;
  std::uint64_t sequence;
  std::uint64_t epoch;
  std::uint64_t committed_step;
  Hash128 sum;
  std::uint64_t process_id;
  std::uint32_t epochs;
  std::uint32_t reserved;
};
static_assert(sizeof(Header) == kEpochsAt);
static_assert(kEpochsAt + kMaxEpochs * 16 == kChecksumAt);

using Body = std::array<std::byte, kBodyBytes>;

std::uint64_t to_word(const std::optional<std::uint64_t>& step) {
  return step ? *step : kNothing;
}
std::optional<std::uint64_t> to_step(std::uint64_t word) {
  return word == kNothing ? std::nullopt : std::optional(word);
}

bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

void encode_record(const Record& record, std::span<std::byte, kRecordBytes> block) {
  check(record.epochs.size() <= kMaxEpochs, "a record with {} epochs", record.epochs.size());
  Body body{};
  Header header{};
  header.magic = kMagic;
  header.store_id = record.store_id;
  header.sequence = record.sequence;
  header.epoch = record.epoch;
  header.committed_step = to_word(record.committed_step);
  header.sum = record.sum;
  header.process_id = record.process_id;
  header.epochs = static_cast<std::uint32_t>(record.epochs.size());
  std::memcpy(body.data(), &header, sizeof(header));
  for (std::size_t i = 0; i < record.epochs.size(); ++i) {
    const std::array<std::uint64_t, 2> words = {record.epochs[i].epoch,
                                                to_word(record.epochs[i].committed_step)};
    std::memcpy(body.data() + kEpochsAt + i * sizeof(words), words.data(), sizeof(words));
  }
  const Hash128 checksum = hash128(body.data(), kChecksumAt);
  std::memcpy(body.data() + kChecksumAt, &checksum, sizeof(checksum));
  for (std::size_t k = 0; k < kSectors; ++k) {
    std::byte* sector = block.data() + k * kSectorBytes;
    std::memcpy(sector, body.data() + k * kSectorBody, kSectorBody);
    std::memcpy(sector + kSectorBody, &record.sequence, 8);
    const std::uint64_t sum = hash64(sector, kSectorBody + 8, k + 1);
    std::memcpy(sector + kSectorBody + 8, &sum, 8);
  }
}

RecordRead decode_record(std::span<const std::byte, kRecordBytes> block, const Hash128& store_id) {
  RecordRead read;
  if (all_zero(block)) return read;
  Body body;
  std::size_t whole = 0;
  std::size_t blank = 0;
  bool one_sequence = true;
  for (std::size_t k = 0; k < kSectors; ++k) {
    const std::byte* sector = block.data() + k * kSectorBytes;
    std::memcpy(body.data() + k * kSectorBody, sector, kSectorBody);
    if (all_zero({sector, kSectorBytes})) {
      ++blank;
      continue;
    }
    std::uint64_t sequence = 0;
    std::uint64_t checksum = 0;
    std::memcpy(&sequence, sector + kSectorBody, 8);
    std::memcpy(&checksum, sector + kSectorBody + 8, 8);
    if (const std::uint64_t got = hash64(sector, kSectorBody + 8, k + 1); got != checksum) {
      read.why = fmt::format("sector {}: checksum wanted {:016x}, got {:016x}", k, checksum, got);
      continue;
    }
    ++whole;
    if (read.sector_sequence && *read.sector_sequence != sequence) one_sequence = false;
    read.sector_sequence = sequence;
  }
  if (!one_sequence) read.sector_sequence.reset();
  if (whole + blank < kSectors) {
    read.state = RecordRead::State::damaged;
    return read;
  }
  Hash128 checksum;
  std::memcpy(&checksum, body.data() + kChecksumAt, sizeof(checksum));
  if (!one_sequence || blank > 0 || hash128(body.data(), kChecksumAt) != checksum) {
    read.state = RecordRead::State::torn;
    read.why = "its sectors are of different writes";
    return read;
  }
  Header header;
  std::memcpy(&header, body.data(), sizeof(header));
  read.state = RecordRead::State::damaged;
  if (header.magic != kMagic || header.epochs > kMaxEpochs || header.sequence != *read.sector_sequence) {
    read.why = "it is not a record of this format";
    return read;
  }
  if (header.store_id != store_id) {
    read.why = fmt::format("it belongs to store {}, wanted {}", to_hex(header.store_id), to_hex(store_id));
    return read;
  }
  read.state = RecordRead::State::whole;
  Record& record = read.record;
  record.store_id = header.store_id;
  record.sequence = header.sequence;
  record.epoch = header.epoch;
  record.process_id = header.process_id;
  record.committed_step = to_step(header.committed_step);
  record.sum = header.sum;
  for (std::size_t i = 0; i < header.epochs; ++i) {
    std::array<std::uint64_t, 2> words;
    std::memcpy(words.data(), body.data() + kEpochsAt + i * sizeof(words), sizeof(words));
    record.epochs.push_back({words[0], to_step(words[1])});
  }
  return read;
}

RecordChoice choose_record(const std::array<RecordRead, kRecordPlaces>& places) {
  using State = RecordRead::State;
  const RecordRead& a = places[0];
  const RecordRead& b = places[1];
  if (a.state == State::whole && b.state == State::whole) {
    return {a.record.sequence > b.record.sequence ? a.record : b.record, ""};
  }
  if (a.state != State::whole && b.state != State::whole) {
    const auto say = [](const RecordRead& read) {
      switch (read.state) {
        case State::blank:
          return std::string("blank");
        case State::torn:
          return "torn (" + read.why + ")";
        case State::damaged:
          return "damaged (" + read.why + ")";
        case State::whole:
          break;
      }
      return std::string("whole");
    };
    return {std::nullopt,
            fmt::format("no place holds a whole record: the first is {}, the second {}", say(a), say(b))};
  }
  const bool first = a.state == State::whole;
  const Record& good = first ? a.record : b.record;
  const RecordRead& other = first ? b : a;
  const std::string_view name = first ? "second" : "first";
  switch (other.state) {
    case State::torn:
      return {good, ""};
    case State::blank:
      if (good.sequence == 1) return {good, ""};
      return {std::nullopt,
              fmt::format("its {} place is blank, but record {} stands in the other: one was lost", name,
                          good.sequence)};
    case State::damaged:
      if (other.sector_sequence && *other.sector_sequence < good.sequence) {
        return {good,
                fmt::format("its {} place, of the record before the last, is damaged ({})", name, other.why)};
      }
      return {std::nullopt,
              fmt::format("its {} place is damaged ({}), and it may have held the last commit; the other "
                          "place holds record {}",
                          name, other.why, good.sequence)};
    case State::whole:
      break;
  }
  return {std::nullopt, "unreachable"};
}

bool is_committed(const Record& record, std::uint64_t epoch, std::uint64_t step) {
  for (const EpochEntry& entry : record.epochs) {
    if (entry.epoch == epoch) return entry.committed_step && step <= *entry.committed_step;
  }
  return false;
}

}  // namespace terrace
