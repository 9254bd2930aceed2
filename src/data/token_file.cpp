#include "src/data/token_file.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>

#include "src/base/fail.h"
#include "src/base/hash.h"

namespace terrace {
namespace {

static_assert(std::endian::native == std::endian::little,
              "token files are little-endian and read as they are");

constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kPieceBytes = std::size_t{1} << 16;

struct Header {
  char magic[8] = {'T', 'E', 'R', 'R', 'T', 'O', 'K', 'N'};
  std::uint32_t version = kVersion;
  std::uint32_t token_bytes = 1;
  std::uint64_t count = 0;
  std::uint64_t reserved0 = 0;
  std::uint64_t vocabulary = 0;
  std::uint64_t payload_hash = 0;
  std::uint64_t reserved1 = 0;
  std::uint64_t header_hash = 0;

  std::uint64_t computed_hash() const { return hash64(this, offsetof(Header, header_hash)); }
};
static_assert(sizeof(Header) == kTokenHeaderBytes && offsetof(Header, header_hash) == 56);

bool is_width(std::uint32_t bytes) {
  return bytes == 1 || bytes == 2 || bytes == 4;
}

// Calls body with a pointer of the token's type; `data` is aligned to its width.
template <typename Body>
auto with_width(std::uint32_t token_bytes, const std::byte* data, Body body) {
  if (token_bytes == 1) return body(reinterpret_cast<const std::uint8_t*>(data));
  if (token_bytes == 2) return body(reinterpret_cast<const std::uint16_t*>(data));
  return body(reinterpret_cast<const std::uint32_t*>(data));
}

// The last bytes of `out` hold its tokens, one after another: widens them in place, from the first on, so
// that none is written over before it was read.
template <typename Token>
void widen(std::span<std::uint32_t> out) {
  const std::byte* from = std::as_bytes(out).data() + out.size() * (sizeof(std::uint32_t) - sizeof(Token));
  for (std::size_t i = 0; i < out.size(); ++i) {
    Token token;
    std::memcpy(&token, from + i * sizeof(Token), sizeof(Token));
    out[i] = token;
  }
}

struct FreeHash {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

}  // namespace

TokenFile::TokenFile(const std::string& path) : file_(path) {
  const std::uint64_t size = file_.size();
  if (size == 0)
    fail(ErrorCode::corrupt, "{}: empty; wanted a token file (`terrace data prepare` writes them)", path);
  if (size < kTokenHeaderBytes) {
    fail(ErrorCode::corrupt, "{}: truncated: wanted a header of {} bytes at offset 0; got {} bytes", path,
         kTokenHeaderBytes, size);
  }
  Header header;
  file_.read(0, std::as_writable_bytes(std::span(&header, 1)));
  if (std::memcmp(header.magic, Header{}.magic, sizeof header.magic) != 0) {
    fail(ErrorCode::corrupt,
         "{}: not a token file: wanted \"TERRTOKN\" at offset 0 (`terrace data prepare` writes it)", path);
  }
  if (header.version != kVersion) {
    fail(ErrorCode::corrupt, "{}: version {} at offset 8; this program reads version {}", path,
         header.version, kVersion);
  }
  if (header.header_hash != header.computed_hash()) {
    fail(ErrorCode::corrupt, "{}: damaged header: wanted checksum {:016x} at offset 56; got {:016x}", path,
         header.computed_hash(), header.header_hash);
  }
  if (!is_width(header.token_bytes)) {
    fail(ErrorCode::corrupt, "{}: tokens of {} bytes (offset 12); wanted 1, 2 or 4", path,
         header.token_bytes);
  }
  const std::uint64_t payload_bytes = size - kTokenHeaderBytes;
  if (payload_bytes / header.token_bytes != header.count || payload_bytes % header.token_bytes != 0) {
    fail(ErrorCode::corrupt, "{}: {}: wanted {} tokens of {} bytes after the header; got {} bytes", path,
         payload_bytes / header.token_bytes < header.count ? "truncated" : "too long", header.count,
         header.token_bytes, payload_bytes);
  }
  count_ = header.count;
  vocabulary_ = header.vocabulary;
  token_bytes_ = header.token_bytes;
  checksum_ = header.payload_hash;
  check_payload("damaged");
}

void TokenFile::require_unchanged() {
  if (file_.changed()) check_payload("changed while it was being read");
}

void TokenFile::check_payload(const char* damage) const {
  const std::unique_ptr<XXH3_state_t, FreeHash> state(XXH3_createState());
  check(state != nullptr && XXH3_64bits_reset(state.get()) == XXH_OK, "no XXH3 state");
  const std::uint64_t payload_bytes = count_ * token_bytes_;
  std::uint64_t first_bad = count_;
  std::vector<std::byte> piece(std::min<std::uint64_t>(kPieceBytes, payload_bytes));
  for (std::uint64_t offset = 0; offset < payload_bytes; offset += kPieceBytes) {
    const std::uint64_t bytes = std::min<std::uint64_t>(kPieceBytes, payload_bytes - offset);
    file_.read(kTokenHeaderBytes + offset, std::span(piece).first(bytes));
    XXH3_64bits_update(state.get(), piece.data(), bytes);
    if (first_bad < count_ || (token_bytes_ < 4 && vocabulary_ >> (8 * token_bytes_) > 0)) continue;
    const std::uint64_t numel = bytes / token_bytes_;
    const std::uint64_t bad = with_width(token_bytes_, piece.data(), [&](const auto* tokens) {
      return static_cast<std::uint64_t>(
          std::find_if(tokens, tokens + numel, [&](auto token) { return token >= vocabulary_; }) - tokens);
    });
    if (bad < numel) first_bad = offset / token_bytes_ + bad;
  }
  const std::uint64_t hash = XXH3_64bits_digest(state.get());
  if (hash != checksum_) {
    fail(ErrorCode::corrupt,
         "{}: {}: the tokens at offsets {} to {} have checksum {:016x}; the header says {:016x}", path(),
         damage, kTokenHeaderBytes, kTokenHeaderBytes + payload_bytes, hash, checksum_);
  }
  if (first_bad < count_) {
    fail(ErrorCode::corrupt, "{}: token {} at offset {} is not below the vocabulary of {}", path(),
         (*this)[first_bad], kTokenHeaderBytes + first_bad * token_bytes_, vocabulary_);
  }
}

std::uint32_t TokenFile::operator[](std::uint64_t index) const {
  std::uint32_t token = 0;
  read(index, {&token, 1});
  return token;
}

void TokenFile::read(std::uint64_t begin, std::span<std::uint32_t> out) const {
  check(begin <= count_ && out.size() <= count_ - begin, "{}: tokens [{}, {}) of {}", path(), begin,
        begin + out.size(), count_);
  const std::span<std::byte> bytes = std::as_writable_bytes(out);
  file_.read(kTokenHeaderBytes + begin * token_bytes_, bytes.last(out.size() * token_bytes_));
  if (token_bytes_ == 1) widen<std::uint8_t>(out);
  if (token_bytes_ == 2) widen<std::uint16_t>(out);
}

TokenFileWriter::TokenFileWriter(const std::string& path, std::uint32_t token_bytes, std::uint64_t vocabulary)
    : path_(path), partial_path_(path + ".partial"), token_bytes_(token_bytes), vocabulary_(vocabulary) {
  if (!is_width(token_bytes)) {
    fail(ErrorCode::invalid_argument, "{}: wanted tokens of 1, 2 or 4 bytes; got {}", path, token_bytes);
  }
  if (vocabulary == 0 || vocabulary - 1 > (~std::uint64_t{0} >> (64 - 8 * token_bytes))) {
    fail(ErrorCode::invalid_argument, "{}: a vocabulary of {} does not fit tokens of {} bytes", path,
         vocabulary, token_bytes);
  }
  fd_ = ::open(partial_path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail(ErrorCode::io_failed, "{}: cannot create: {}", partial_path_, std::strerror(errno));
  hash_ = XXH3_createState();
  check(hash_ != nullptr && XXH3_64bits_reset(static_cast<XXH3_state_t*>(hash_)) == XXH_OK, "no XXH3 state");
}

TokenFileWriter::~TokenFileWriter() {
  XXH3_freeState(static_cast<XXH3_state_t*>(hash_));
  if (fd_ >= 0) {
    ::close(fd_);
    ::unlink(partial_path_.c_str());
  }
}

void TokenFileWriter::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      fail(ErrorCode::io_failed, "{}: cannot write at offset {}: wanted {} bytes, got {}", partial_path_,
           offset, bytes.size(), written < 0 ? std::strerror(errno) : "0 bytes");
    }
    offset += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void TokenFileWriter::append(std::span<const std::uint32_t> tokens) {
  buffer_.resize(tokens.size() * token_bytes_);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= vocabulary_) {
      fail(ErrorCode::invalid_argument, "{}: token {} at position {} is not below the vocabulary of {}",
           path_, tokens[i], count_ + i, vocabulary_);
    }
    std::memcpy(buffer_.data() + i * token_bytes_, &tokens[i], token_bytes_);
  }
  write_at(kTokenHeaderBytes + count_ * token_bytes_, buffer_);
  XXH3_64bits_update(static_cast<XXH3_state_t*>(hash_), buffer_.data(), buffer_.size());
  count_ += tokens.size();
}

void TokenFileWriter::finish() {
  check(fd_ >= 0, "{}: finished twice", path_);
  Header header;
  header.token_bytes = token_bytes_;
  header.count = count_;
  header.vocabulary = vocabulary_;
  header.payload_hash = XXH3_64bits_digest(static_cast<XXH3_state_t*>(hash_));
  header.header_hash = header.computed_hash();
  write_at(0, std::as_bytes(std::span(&header, 1)));
  if (::fdatasync(fd_) != 0)
    fail(ErrorCode::io_failed, "{}: cannot flush: {}", partial_path_, std::strerror(errno));
  if (::rename(partial_path_.c_str(), path_.c_str()) != 0) {
    fail(ErrorCode::io_failed, "{}: cannot rename {} to it: {}", path_, partial_path_, std::strerror(errno));
  }
  ::close(fd_);
  fd_ = -1;
}

}  // namespace terrace
