#include "src/data/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/data/utf8.h"
#include "tests/data/file_text.h"

namespace terrace {
namespace {

using testing::HasSubstr;

std::optional<CodePoint> first(const std::string& text) {
  return first_code_point(std::as_bytes(std::span(text)));
}

TEST(Utf8, EveryCodePointComesBack) {
  for (char32_t value = 0; value < kCodePoints; ++value) {
    if (value >= 0xD800 && value < 0xE000) continue;
    std::string text;
    append_utf8(text, value);
    const std::size_t bytes = value < 0x80 ? 1 : value < 0x800 ? 2 : value < 0x10000 ? 3 : 4;
    ASSERT_EQ(text.size(), bytes);
    const auto point = first(text + "x");
    ASSERT_TRUE(point.has_value());
    ASSERT_EQ(point->value, value);
    ASSERT_EQ(point->bytes, bytes);
    ASSERT_FALSE(first(text.substr(0, bytes - 1)).has_value());  // cut short, or empty
  }
  std::string text;
  EXPECT_THROW(append_utf8(text, 0xD800), Error);
  EXPECT_THROW(append_utf8(text, kCodePoints), Error);
  append_utf8(text, U'\u01B0');
  append_utf8(text, U'\u1EDD');
  EXPECT_EQ(text, "ườ");
}

TEST(Utf8, RefusesWhatIsNone) {
  for (const char* text :
       {"\x80", "\xBF", "\xC3", "\xC3(", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xE1\xBB",
        "\xE1\xBB"
        "e",
        "\xED\xA0\x80", "\xED\xBF\xBF", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80",
        "\xF8\x88\x80\x80\x80", "\xFE", "\xFF"}) {
    EXPECT_FALSE(first(text).has_value()) << testing::PrintToString(text);
  }
}

TEST(Tokenizer, BytesAreTheirOwnTokens) {
  const Tokenizer tokenizer;
  EXPECT_TRUE(tokenizer.is_bytes());
  EXPECT_EQ(tokenizer.vocabulary(), 256u);
  const std::string text = std::string("a\0\xFF", 3);
  const auto tokens = tokenizer.encode(text);
  EXPECT_EQ(tokens, (std::vector<std::uint32_t>{97, 0, 255}));
  EXPECT_EQ(tokenizer.decode(tokens), text);
  EXPECT_EQ(tokenizer.decode(std::vector<std::uint32_t>{97, 256, 98}), "ab");
}

TEST(Tokenizer, CharactersAreNumberedByCodePoint) {
  const Tokenizer tokenizer({U'\n', U'a', U'đ', U'ờ', U'\U0001F600'});
  EXPECT_EQ(tokenizer.vocabulary(), 5u);
  const auto tokens = tokenizer.encode("ờa😀đ\n");
  EXPECT_EQ(tokens, (std::vector<std::uint32_t>{3, 1, 4, 2, 0}));
  EXPECT_EQ(tokenizer.decode(tokens), "ờa😀đ\n");
  EXPECT_EQ(tokenizer.decode(std::vector<std::uint32_t>{5, 2, 1000}), "đ");
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { tokenizer.encode("aờb"); }),
              HasSubstr("'b' (U+0062) at byte 4 is not one of the 5 characters"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { tokenizer.encode("aa\xE1\xBB"); }),
              HasSubstr("not UTF-8 at byte 2"));
  EXPECT_THROW(tokenizer.token_of(U'b'), Error);
}

TEST(Tokenizer, RefusesAlphabetsThatAreNone) {
  for (const std::vector<char32_t>& alphabet :
       {std::vector<char32_t>{}, {U'b', U'a'}, {U'a', U'a'}, {U'a', 0xD800}, {kCodePoints}}) {
    EXPECT_THROW(Tokenizer{alphabet}, Error);
  }
}

TEST(Tokenizer, KeepsItsAlphabetInTheFolder) {
  const TempDir folder;
  EXPECT_TRUE(Tokenizer::of_folder(folder.path()).is_bytes());
  EXPECT_TRUE(Tokenizer::of_folder(folder.file("none")).is_bytes());
  const Tokenizer tokenizer({U'\n', U'"', U'ă', U'ợ'});
  tokenizer.write_alphabet(folder.path());
  EXPECT_EQ(Tokenizer::of_folder(folder.path()).alphabet(), tokenizer.alphabet());
  EXPECT_FALSE(std::filesystem::exists(folder.file(kAlphabetName) + ".partial"));
  error_of(ErrorCode::io_failed, [&] { tokenizer.write_alphabet(folder.file("none")); });

  const std::string path = folder.file(kAlphabetName);
  for (const char* bad :
       {"", "{", "[]", "{}", "{\"characters\": 3}", "{\"characters\": []}", "{\"characters\": [97, 97]}",
        "{\"characters\": [-1]}", "{\"characters\": [1114112]}", "{\"characters\": [\"a\"]}",
        "{\"characters\": [55296]}"}) {
    write_file(path, bad);
    EXPECT_THAT(error_of(ErrorCode::corrupt, [&] { Tokenizer::of_folder(folder.path()); }), HasSubstr(path))
        << bad;
  }
}

}  // namespace
}  // namespace terrace
