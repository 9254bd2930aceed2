#include <unistd.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <utility>
#include <vector>

#include "src/base/fail.h"
#include "src/data/regular_file.h"
#include "src/data/token_file.h"
#include "src/data/tokenizer.h"
#include "src/data/utf8.h"
#include "terrace/data.h"

namespace terrace {
namespace {

bool continues_character(std::byte byte) {
  return std::to_integer<unsigned>(byte) >> 6 == 2;
}

// Bytes of `piece` before the character that its end cuts; all of them where it cuts none.
std::size_t whole_characters(std::span<const std::byte> piece) {
  constexpr std::size_t kLongest = 4;
  for (std::size_t back = 1; back < kLongest && back < piece.size(); ++back) {
    const std::byte byte = piece[piece.size() - back];
    if (continues_character(byte)) continue;
    const int bytes = std::countl_one(std::to_integer<std::uint8_t>(byte));  // of the character; 0 = one
    return std::cmp_greater(bytes, back) ? piece.size() - back : piece.size();
  }
  return piece.size();
}

// Several files seen as one text. Read by the piece: a text of any size takes kPieceBytes.
class Text {
 public:
  explicit Text(const std::vector<std::string>& paths) {
    for (const auto& path : paths) {
      files_.emplace_back(path);
      if (files_.back().size() == 0) fail(ErrorCode::invalid_argument, "{}: empty; wanted text", path);
      size_ += files_.back().size();
    }
  }

  std::uint64_t size() const { return size_; }

  // Calls body(file, offset in it, bytes) with every piece of [begin, end), in order. A piece ends with a
  // whole character, but where its file or the range does not.
  template <typename Body>
  void for_each_piece(std::uint64_t begin, std::uint64_t end, Body body) {
    std::vector<std::byte> buffer;
    std::uint64_t start = 0;
    for (auto& file : files_) {
      const std::uint64_t stop = start + file.size();
      const std::uint64_t to = std::min(end, stop);
      for (std::uint64_t from = std::max(begin, start); from < to;) {
        buffer.resize(std::min<std::uint64_t>(kPieceBytes, to - from));
        file.read(from - start, buffer);
        std::span<const std::byte> piece = buffer;
        if (from + piece.size() < to) piece = piece.first(whole_characters(piece));
        body(file, from - start, piece);
        from += piece.size();
      }
      start = stop;
    }
  }

  // The place just after the last newline of [lowest, limit); `limit` itself where there is none.
  std::uint64_t line_start(std::uint64_t lowest, std::uint64_t limit) {
    std::uint64_t found = limit;
    std::uint64_t position = lowest;
    for_each_piece(lowest, limit, [&](RegularFile&, std::uint64_t, std::span<const std::byte> piece) {
      const auto last = std::find(piece.rbegin(), piece.rend(), std::byte{'\n'});
      position += piece.size();
      if (last != piece.rend()) found = position - static_cast<std::uint64_t>(last - piece.rbegin());
    });
    return found;
  }

 private:
  static constexpr std::size_t kPieceBytes = std::size_t{1} << 18;

  std::vector<RegularFile> files_;
  std::uint64_t size_ = 0;
};

// Every code point of the text, ascending. Throws invalid_argument for what is not UTF-8.
std::vector<char32_t> alphabet_of(Text& text) {
  std::vector<bool> seen(kCodePoints);
  text.for_each_piece(
      0, text.size(), [&](RegularFile& file, std::uint64_t begin, std::span<const std::byte> piece) {
        for (std::size_t at = 0; at < piece.size();) {
          const auto point = first_code_point(piece.subspan(at));
          if (!point) {
            fail(ErrorCode::invalid_argument,
                 "{}: not UTF-8 at byte offset {} (0x{:02x}); --tokenizer chars wants UTF-8, bytes takes any "
                 "file",
                 file.path(), begin + at, std::to_integer<unsigned>(piece[at]));
          }
          seen[point->value] = true;
          at += point->bytes;
        }
      });
  std::vector<char32_t> alphabet;
  for (char32_t value = 0; value < kCodePoints; ++value) {
    if (seen[value]) alphabet.push_back(value);
  }
  return alphabet;
}

std::uint64_t tokens_in(Text& text, std::uint64_t begin, std::uint64_t end, const Tokenizer& tokenizer) {
  if (tokenizer.is_bytes()) return end - begin;
  std::uint64_t count = 0;
  text.for_each_piece(begin, end, [&](RegularFile&, std::uint64_t, std::span<const std::byte> piece) {
    count += piece.size() - static_cast<std::uint64_t>(std::ranges::count_if(piece, continues_character));
  });
  return count;
}

// [begin, end) holds whole characters.
void append(Text& text, std::uint64_t begin, std::uint64_t end, const Tokenizer& tokenizer,
            TokenFileWriter& writer) {
  std::vector<std::uint32_t> tokens;
  text.for_each_piece(begin, end, [&](RegularFile& file, std::uint64_t, std::span<const std::byte> piece) {
    // Since its characters were counted: written to, linked or renamed.
    if (file.changed()) fail(ErrorCode::corrupt, "{}: changed while it was being read", file.path());
    tokens.clear();
    for (std::size_t at = 0; at < piece.size();) {
      if (tokenizer.is_bytes()) {
        tokens.push_back(std::to_integer<std::uint32_t>(piece[at++]));
        continue;
      }
      const auto point = first_code_point(piece.subspan(at));
      check(point.has_value(), "the text changed while it was read");
      tokens.push_back(tokenizer.token_of(point->value));
      at += point->bytes;
    }
    writer.append(tokens);
  });
}

// After a newline of [limit - slack, limit), else at the start of the character that `limit` is in.
std::uint64_t split_at(Text& text, std::uint64_t limit, std::uint64_t slack, const Tokenizer& tokenizer) {
  std::uint64_t split = text.line_start(limit - std::min(limit, slack), limit);
  const auto inside = [&](std::uint64_t place) {
    bool continues = false;
    text.for_each_piece(place, place + 1, [&](RegularFile&, std::uint64_t, std::span<const std::byte> piece) {
      continues = continues_character(piece[0]);
    });
    return continues;
  };
  while (!tokenizer.is_bytes() && split > 0 && inside(split)) --split;
  return split;
}

std::uint32_t narrowest_token_bytes(std::uint64_t vocabulary) {
  return vocabulary <= 1u << 8 ? 1 : vocabulary <= 1u << 16 ? 2 : 4;
}

}  // namespace

PrepareResult prepare_data(const std::vector<std::string>& files, const std::string& out_dir,
                           const PrepareOptions& options) {
  if (files.empty()) fail(ErrorCode::invalid_argument, "data prepare: wanted at least one text file");
  if (!(options.validation_share >= 0 && options.validation_share <= 0.5)) {
    fail(ErrorCode::invalid_argument, "data prepare: wanted a validation share from 0 to 0.5; got {}",
         options.validation_share);
  }
  if (options.tokenizer != "bytes" && options.tokenizer != "chars") {
    fail(ErrorCode::invalid_argument, "data prepare: tokenizer is '{}'; wanted bytes or chars",
         options.tokenizer);
  }
  Text text(files);
  const Tokenizer tokenizer = options.tokenizer == "chars" ? Tokenizer(alphabet_of(text)) : Tokenizer();
  const auto validation =
      static_cast<std::uint64_t>(static_cast<double>(text.size()) * options.validation_share);
  // At a newline when one is near: validation is at most twice what was asked.
  const std::uint64_t limit = text.size() - validation;
  const std::uint64_t split =
      options.validation_share == 0 ? limit : split_at(text, limit, validation, tokenizer);
  PrepareResult result;
  result.vocabulary = tokenizer.vocabulary();
  result.train_tokens = tokens_in(text, 0, split, tokenizer);
  result.validation_tokens = tokens_in(text, split, text.size(), tokenizer);
  // A sample is at least one token and its target.
  if (result.train_tokens < 2 || (options.validation_share > 0 && result.validation_tokens < 2)) {
    fail(ErrorCode::invalid_argument,
         "{}: too short to split: {} {}, {} of them for validation; each split needs at least 2",
         files.front(), result.train_tokens + result.validation_tokens,
         tokenizer.is_bytes() ? "bytes" : "characters", result.validation_tokens);
  }
  std::error_code status;
  std::filesystem::create_directories(out_dir, status);
  if (status || !std::filesystem::is_directory(out_dir)) {
    fail(ErrorCode::io_failed, "{}: cannot create the folder: {}", out_dir, status.message());
  }
  const std::filesystem::path folder(out_dir);
  result.train_path = (folder / kTrainTokensName).string();
  const std::string validation_path = (folder / kValidationTokensName).string();
  const std::string alphabet_path = (folder / kAlphabetName).string();
  const std::uint32_t token_bytes =
      options.token_bytes == 0 ? narrowest_token_bytes(result.vocabulary) : options.token_bytes;
  TokenFileWriter train(result.train_path, token_bytes, result.vocabulary);
  append(text, 0, split, tokenizer, train);
  if (options.validation_share > 0) {
    TokenFileWriter held_out(validation_path, token_bytes, result.vocabulary);
    append(text, split, text.size(), tokenizer, held_out);
    held_out.finish();
    result.validation_path = validation_path;
  } else {
    std::filesystem::remove(validation_path, status);
  }
  if (tokenizer.is_bytes()) {
    std::filesystem::remove(alphabet_path, status);
  } else {
    tokenizer.write_alphabet(out_dir);
    result.alphabet_path = alphabet_path;
  }
  train.finish();
  return result;
}

}  // namespace terrace
