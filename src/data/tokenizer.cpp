#include "src/data/tokenizer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/base/fail.h"
#include "src/data/utf8.h"

namespace terrace {
namespace {

constexpr std::uint32_t kByteVocabulary = 256;

std::string path_in(const std::string& folder) {
  return (std::filesystem::path(folder) / kAlphabetName).string();
}

}  // namespace

Tokenizer::Tokenizer(std::vector<char32_t> alphabet) : alphabet_(std::move(alphabet)) {
  if (alphabet_.empty()) fail(ErrorCode::invalid_argument, "an alphabet without characters");
  for (std::size_t i = 0; i < alphabet_.size(); ++i) {
    const bool ascending = i == 0 || alphabet_[i - 1] < alphabet_[i];
    const bool in_utf8 = alphabet_[i] < kCodePoints && (alphabet_[i] < 0xD800 || alphabet_[i] >= 0xE000);
    if (!ascending || !in_utf8) {
      fail(ErrorCode::invalid_argument, "an alphabet of ascending code points has {} at place {}",
           static_cast<std::uint32_t>(alphabet_[i]), i);
    }
  }
}

Tokenizer Tokenizer::of_folder(const std::string& folder) {
  const std::string path = path_in(folder);
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::error_code status;
    if (!std::filesystem::exists(path, status) && !status) return {};
    fail(ErrorCode::io_failed, "{}: cannot read the alphabet: {}", path, std::strerror(errno));
  }
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  try {
    std::vector<char32_t> alphabet;
    const auto json = nlohmann::json::parse(text);
    if (!json.at("characters").is_array()) fail(ErrorCode::invalid_argument, "characters is no list");
    for (const auto& value : json["characters"]) {
      if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= kCodePoints) {
        fail(ErrorCode::invalid_argument, "{} is no code point", value.dump());
      }
      alphabet.push_back(static_cast<char32_t>(value.get<std::uint64_t>()));
    }
    return Tokenizer(std::move(alphabet));
  } catch (const std::exception& error) {
    fail(ErrorCode::corrupt, "{}: wanted an alphabet as `terrace data prepare` writes it: {}", path,
         error.what());
  }
}

std::uint32_t Tokenizer::vocabulary() const {
  return is_bytes() ? kByteVocabulary : static_cast<std::uint32_t>(alphabet_.size());
}

std::uint32_t Tokenizer::token_of(char32_t code_point) const {
  const auto found = std::ranges::lower_bound(alphabet_, code_point);
  check(found != alphabet_.end() && *found == code_point, "U+{:04X} is not in the alphabet",
        static_cast<std::uint32_t>(code_point));
  return static_cast<std::uint32_t>(found - alphabet_.begin());
}

std::vector<std::uint32_t> Tokenizer::encode(std::string_view text) const {
  const auto bytes = std::as_bytes(std::span(text));
  std::vector<std::uint32_t> tokens;
  if (is_bytes()) {
    for (const std::byte byte : bytes) tokens.push_back(std::to_integer<std::uint32_t>(byte));
    return tokens;
  }
  for (std::size_t offset = 0; offset < bytes.size();) {
    const auto point = first_code_point(bytes.subspan(offset));
    if (!point) fail(ErrorCode::invalid_argument, "the text is not UTF-8 at byte {}", offset);
    if (!std::ranges::binary_search(alphabet_, point->value)) {
      fail(ErrorCode::invalid_argument,
           "'{}' (U+{:04X}) at byte {} is not one of the {} characters of the data",
           text.substr(offset, point->bytes), static_cast<std::uint32_t>(point->value), offset,
           alphabet_.size());
    }
    tokens.push_back(token_of(point->value));
    offset += point->bytes;
  }
  return tokens;
}

std::string Tokenizer::decode(std::span<const std::uint32_t> tokens) const {
  std::string text;
  for (const std::uint32_t token : tokens) {
    if (token >= vocabulary()) continue;
    if (is_bytes()) {
      text.push_back(static_cast<char>(token));
    } else {
      append_utf8(text, alphabet_[token]);
    }
  }
  return text;
}

void Tokenizer::write_alphabet(const std::string& folder) const {
  const std::string path = path_in(folder);
  const std::string partial = path + ".partial";
  std::vector<std::uint32_t> numbers(alphabet_.begin(), alphabet_.end());
  {
    std::ofstream file(partial, std::ios::binary);
    file << nlohmann::json{{"characters", numbers}}.dump() << '\n';
    if (!file.flush()) fail(ErrorCode::io_failed, "{}: cannot write: {}", partial, std::strerror(errno));
  }
  std::error_code status;
  std::filesystem::rename(partial, path, status);
  if (status) fail(ErrorCode::io_failed, "{}: cannot rename {} to it: {}", path, partial, status.message());
}

}  // namespace terrace
