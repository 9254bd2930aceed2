// The commit record: a 4 KiB block written alternately to two places, in eight sectors that are each checked
// alone, so that a write torn by a crash can be told from damage. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/base/hash.h"

namespace terrace {

inline constexpr std::size_t kRecordBytes = 4096;
inline constexpr std::size_t kRecordPlaces = 2;
// Epochs that a record has room for.
inline constexpr std::size_t kMaxEpochs = 242;

struct EpochEntry {
  std::uint64_t epoch = 0;
  std::optional<std::uint64_t> committed_step;  // the last step it committed; none: nothing it wrote counts
  friend bool operator==(const EpochEntry&, const EpochEntry&) = default;
};

struct Record {
  Hash128 store_id;
  std::uint64_t sequence = 0;  // counts records; the record lies in place sequence % 2
  std::uint64_t epoch = 0;     // of the run that wrote it: the highest ever given
  std::uint64_t process_id = 0;
  std::optional<std::uint64_t> committed_step;
  Hash128 sum;                     // of cut_term over the cut's extents
  std::vector<EpochEntry> epochs;  // ascending
  friend bool operator==(const Record&, const Record&) = default;
};

void encode_record(const Record& record, std::span<std::byte, kRecordBytes> block);

struct RecordRead {
  enum class State : std::uint8_t {
    blank,  // all zero: never written
    whole,
    torn,    // each sector is whole, but they are of different writes: a crash cut the write
    damaged  // a sector is not what any write left
  };
  State state = State::blank;
  Record record;  // when whole
  std::optional<std::uint64_t>
      sector_sequence;  // the one sequence of all sectors that are whole, when there is one
  std::string why;      // when torn or damaged
};

RecordRead decode_record(std::span<const std::byte, kRecordBytes> block, const Hash128& store_id);

struct RecordChoice {
  std::optional<Record> record;  // none: the store must be refused
  std::string why;               // then: why; otherwise what is worth a warning, or empty
};

// The newer whole record. A torn place makes the other one right, for that write was never completed. A
// damaged place does so only where its sectors show that it was the older one.
RecordChoice choose_record(const std::array<RecordRead, kRecordPlaces>& places);

// Whether what (epoch, step) wrote was committed.
bool is_committed(const Record& record, std::uint64_t epoch, std::uint64_t step);

}  // namespace terrace
