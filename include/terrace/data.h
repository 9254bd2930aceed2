// Text files -> token files that training reads: what `terrace data prepare` calls.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace terrace {

struct PrepareOptions {
  double validation_share =
      0.05;  // in [0, 0.5]: the end of the text, cut after a newline; 0 = no validation split
  std::uint32_t token_bytes = 0;    // width of a stored token: 1, 2 or 4; 0 = the narrowest that does
  std::string tokenizer = "bytes";  // a token a byte, or "chars": a token a code point of UTF-8 text
};

struct PrepareResult {
  std::uint64_t train_tokens = 0;
  std::uint64_t validation_tokens = 0;
  std::uint32_t vocabulary = 256;  // 256 for bytes; for chars, the different ones of the text
  std::string train_path;          // out_dir/train.tokens
  std::string validation_path;     // out_dir/validation.tokens; empty without a validation split
  std::string alphabet_path;       // out_dir/alphabet.json; empty for bytes
};

// Lays `files` end to end, one token a byte or a character, and writes both splits into `out_dir` (created if
// need be; files of an earlier call are replaced whole or not at all). Characters are numbered in ascending
// code point order over the whole text; the alphabet is written beside the tokens, from where `terrace
// sample` reads it. Throws not_found or invalid_argument for a file that is missing, empty, too short to
// split or (for chars, with the byte offset) not UTF-8, io_failed with path, offset, wanted and got. Cost:
// one pass over the text, two for chars; memory does not grow with the text.
PrepareResult prepare_data(const std::vector<std::string>& files, const std::string& out_dir,
                           const PrepareOptions& options = {});

}  // namespace terrace
