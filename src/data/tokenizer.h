// Text to tokens and back: a token a byte, or a token a character of an alphabet.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

// Beside the token files of `terrace data prepare --tokenizer chars`: {"characters": [10, 32, ...]}, the code
// points in ascending order, token t being the t-th.
inline constexpr const char* kAlphabetName = "alphabet.json";

// Thread contract: immutable.
class Tokenizer {
 public:
  // One token a byte.
  Tokenizer() = default;
  // One token a code point of `alphabet`, which is ascending and not empty. Throws invalid_argument.
  explicit Tokenizer(std::vector<char32_t> alphabet);
  // Of a folder that `terrace data prepare` wrote: characters where it holds an alphabet, else bytes. Throws
  // corrupt with the path for an alphabet that cannot be read.
  static Tokenizer of_folder(const std::string& folder);

  bool is_bytes() const { return alphabet_.empty(); }
  std::uint32_t vocabulary() const;
  const std::vector<char32_t>& alphabet() const { return alphabet_; }  // empty for bytes

  // Throws invalid_argument naming the byte offset in `text` for what is not UTF-8 or not in the alphabet.
  // Cost: a search of the alphabet a character.
  std::vector<std::uint32_t> encode(std::string_view text) const;
  // The token of a code point below the alphabet's end; throws internal where the alphabet lacks it.
  std::uint32_t token_of(char32_t code_point) const;
  // Tokens that stand for no text (a model's vocabulary may be larger than the data's) give none.
  std::string decode(std::span<const std::uint32_t> tokens) const;

  // Writes the alphabet into `folder`: whole or not at all. Throws io_failed with the path.
  void write_alphabet(const std::string& folder) const;

 private:
  std::vector<char32_t> alphabet_;
};

}  // namespace terrace
