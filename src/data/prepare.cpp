#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "src/base/fail.h"
#include "src/data/mapped_file.h"
#include "src/data/token_file.h"
#include "terrace/data.h"

namespace terrace {
namespace {

constexpr std::uint32_t kByteVocabulary = 256;

// Several files seen as one text.
class Text {
 public:
  explicit Text(const std::vector<std::string>& paths) {
    for (const auto& path : paths) {
      files_.emplace_back(path);
      if (files_.back().bytes().empty()) fail(ErrorCode::invalid_argument, "{}: empty; wanted text", path);
      size_ += files_.back().bytes().size();
    }
  }

  std::uint64_t size() const { return size_; }

  // Calls body with every contiguous piece of [begin, end), in order.
  template <typename Body>
  void for_each_piece(std::uint64_t begin, std::uint64_t end, Body body) const {
    std::uint64_t start = 0;
    for (const auto& file : files_) {
      const std::uint64_t stop = start + file.bytes().size();
      const std::uint64_t from = std::max(begin, start);
      const std::uint64_t to = std::min(end, stop);
      if (from < to) body(file.bytes().subspan(from - start, to - from));
      start = stop;
    }
  }

  // The place just after the last newline of [lowest, limit); `limit` itself where there is none.
  std::uint64_t line_start(std::uint64_t lowest, std::uint64_t limit) const {
    std::uint64_t found = limit;
    std::uint64_t position = lowest;
    for_each_piece(lowest, limit, [&](std::span<const std::byte> piece) {
      const auto last = std::find(piece.rbegin(), piece.rend(), std::byte{'\n'});
      position += piece.size();
      if (last != piece.rend()) found = position - static_cast<std::uint64_t>(last - piece.rbegin());
    });
    return found;
  }

 private:
  std::vector<MappedFile> files_;
  std::uint64_t size_ = 0;
};

void append_bytes(const Text& text, std::uint64_t begin, std::uint64_t end, TokenFileWriter& writer) {
  constexpr std::size_t kPieceTokens = 1 << 18;
  std::vector<std::uint32_t> tokens;
  text.for_each_piece(begin, end, [&](std::span<const std::byte> piece) {
    for (; !piece.empty(); piece = piece.subspan(tokens.size())) {
      tokens.resize(std::min(piece.size(), kPieceTokens));
      std::transform(piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(tokens.size()),
                     tokens.begin(), [](std::byte byte) { return std::to_integer<std::uint32_t>(byte); });
      writer.append(tokens);
    }
  });
}

}  // namespace

PrepareResult prepare_data(const std::vector<std::string>& files, const std::string& out_dir,
                           const PrepareOptions& options) {
  if (files.empty()) fail(ErrorCode::invalid_argument, "data prepare: wanted at least one text file");
  if (!(options.validation_share >= 0 && options.validation_share <= 0.5)) {
    fail(ErrorCode::invalid_argument, "data prepare: wanted a validation share from 0 to 0.5; got {}",
         options.validation_share);
  }
  const Text text(files);
  const auto validation =
      static_cast<std::uint64_t>(static_cast<double>(text.size()) * options.validation_share);
  // At a newline when one is near: validation is at most twice what was asked.
  const std::uint64_t limit = text.size() - validation;
  const std::uint64_t split =
      options.validation_share == 0 ? limit : text.line_start(limit - std::min(limit, validation), limit);
  // A sample is at least one token and its target.
  if (split < 2 || (options.validation_share > 0 && text.size() - split < 2)) {
    fail(ErrorCode::invalid_argument,
         "{}: too short to split: {} bytes, {} of them for validation; each split needs at least 2",
         files.front(), text.size(), text.size() - split);
  }
  std::error_code status;
  std::filesystem::create_directories(out_dir, status);
  if (status || !std::filesystem::is_directory(out_dir)) {
    fail(ErrorCode::io_failed, "{}: cannot create the folder: {}", out_dir, status.message());
  }
  PrepareResult result;
  result.vocabulary = kByteVocabulary;
  result.train_tokens = split;
  result.validation_tokens = text.size() - split;
  result.train_path = (std::filesystem::path(out_dir) / kTrainTokensName).string();
  const std::string validation_path = (std::filesystem::path(out_dir) / kValidationTokensName).string();
  TokenFileWriter train(result.train_path, options.token_bytes, kByteVocabulary);
  append_bytes(text, 0, split, train);
  if (options.validation_share > 0) {
    TokenFileWriter held_out(validation_path, options.token_bytes, kByteVocabulary);
    append_bytes(text, split, text.size(), held_out);
    held_out.finish();
    result.validation_path = validation_path;
  } else {
    std::filesystem::remove(validation_path, status);
  }
  train.finish();
  return result;
}

}  // namespace terrace
