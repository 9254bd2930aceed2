// Token files: a checked 64-byte header, then one token after another, little-endian, 1, 2 or 4 bytes wide.
//
//   bytes   0..7   "TERRTOKN"          32..39  vocabulary (every token is below it)
//           8..11  version, 1          40..47  XXH3-64 of the tokens' bytes
//          12..15  bytes a token       48..55  0
//          16..23  count of tokens     56..63  XXH3-64 of bytes 0..55
//          24..31  0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/data/regular_file.h"

namespace terrace {

inline constexpr std::size_t kTokenHeaderBytes = 64;

// What `terrace data prepare` calls its files.
inline constexpr const char* kTrainTokensName = "train.tokens";
inline constexpr const char* kValidationTokensName = "validation.tokens";

// Thread contract: const calls from any thread; require_unchanged() alone.
class TokenFile {
 public:
  // Opens, and checks header, length, checksum and that every token is below the vocabulary. Throws
  // not_found, or corrupt with path, offset, wanted and got. Cost: one pass over the file; of memory, 64 KiB
  // while it lasts.
  explicit TokenFile(const std::string& path);

  std::uint64_t count() const { return count_; }
  std::uint64_t vocabulary() const { return vocabulary_; }
  std::uint32_t token_bytes() const { return token_bytes_; }
  std::uint64_t checksum() const { return checksum_; }  // of the tokens: the data's identity
  const std::string& path() const { return file_.path(); }

  std::uint32_t operator[](std::uint64_t index) const;
  // Copies tokens [begin, begin + out.size()); the range must lie inside the file (internal error). Throws
  // corrupt where the file has been cut short since it was opened, io_failed. Cost: a system call; no memory.
  void read(std::uint64_t begin, std::span<std::uint32_t> out) const;

  // Throws corrupt where the tokens are no longer those that were opened: what was read before this call is
  // then not to be trusted. Cost: a system call; where the file was written to, linked or renamed over since
  // the last call, one pass over it.
  void require_unchanged();

 private:
  void check_payload(const char* damage) const;

  RegularFile file_;
  std::uint64_t count_ = 0;
  std::uint64_t vocabulary_ = 0;
  std::uint64_t checksum_ = 0;
  std::uint32_t token_bytes_ = 1;
};

// Writes "<path>.partial" and renames it in finish(): readers see the old file or the whole new one. A writer
// that is destroyed unfinished removes what it wrote. Thread contract: one thread.
class TokenFileWriter {
 public:
  // Throws invalid_argument for a width other than 1, 2 or 4 or one too narrow for `vocabulary`; io_failed.
  TokenFileWriter(const std::string& path, std::uint32_t token_bytes, std::uint64_t vocabulary);
  ~TokenFileWriter();
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;

  // Throws invalid_argument for a token that is not below the vocabulary, io_failed for a write.
  void append(std::span<const std::uint32_t> tokens);
  // Header, flush to the disk, rename.
  void finish();

 private:
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);

  std::string path_;
  std::string partial_path_;
  int fd_ = -1;
  std::uint32_t token_bytes_;
  std::uint64_t vocabulary_;
  std::uint64_t count_ = 0;
  std::vector<std::byte> buffer_;  // one append's tokens, encoded
  void* hash_ = nullptr;           // XXH3 state
};

}  // namespace terrace
