// Text files -> token files that training maps into memory: what `terrace data prepare` calls.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace terrace {

struct PrepareOptions {
  double validation_share =
      0.05;  // in [0, 0.5]: the end of the text, cut after a newline; 0 = no validation split
  std::uint32_t token_bytes = 1;  // width of a stored token: 1, 2 or 4
};

struct PrepareResult {
  std::uint64_t train_tokens = 0;
  std::uint64_t validation_tokens = 0;
  std::uint32_t vocabulary = 256;
  std::string train_path;       // out_dir/train.tokens
  std::string validation_path;  // out_dir/validation.tokens; empty without a validation split
};

// Lays `files` end to end, one token a byte, and writes both splits into `out_dir` (created if need be; files
// of an earlier call are replaced whole or not at all). Throws not_found or invalid_argument for a file that
// is missing, empty or too short to split, io_failed with path, offset, wanted and got. Cost: one pass;
// memory does not grow with the text.
PrepareResult prepare_data(const std::vector<std::string>& files, const std::string& out_dir,
                           const PrepareOptions& options = {});

}  // namespace terrace
