// Text to tokens, a character each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/data/sampler.h"
#include "src/data/token_file.h"
#include "src/data/tokenizer.h"
#include "terrace/data.h"
#include "tests/data/file_text.h"

namespace terrace {
namespace {

using testing::HasSubstr;

PrepareOptions chars(double validation_share = 0, std::uint32_t token_bytes = 0) {
  return {validation_share, token_bytes, "chars"};
}

std::vector<std::uint32_t> tokens_of(const std::string& path) {
  const TokenFile file(path);
  std::vector<std::uint32_t> tokens(file.count());
  file.read(0, tokens);
  return tokens;
}

std::string text_of(const std::string& folder, const std::string& path) {
  return Tokenizer::of_folder(folder).decode(tokens_of(path));
}

TEST(PrepareChars, NumbersCharactersByCodePointOverAllFiles) {
  const TempDir folder;
  write_file(folder.file("a"), "bờ\n");
  write_file(folder.file("b"), "a😀b");
  const auto result = prepare_data({folder.file("a"), folder.file("b")}, folder.file("out"), chars());
  EXPECT_EQ(result.vocabulary, 5u);
  EXPECT_EQ(result.train_tokens, 6u);
  EXPECT_EQ(tokens_of(result.train_path), (std::vector<std::uint32_t>{2, 3, 0, 1, 4, 2}));
  EXPECT_EQ(TokenFile(result.train_path).vocabulary(), 5u);
  EXPECT_EQ(Tokenizer::of_folder(folder.file("out")).alphabet(),
            (std::vector<char32_t>{U'\n', U'a', U'b', U'ờ', U'\U0001F600'}));
}

TEST(PrepareChars, SplitsBetweenCharactersAndKeepsThemAll) {
  const TempDir folder;
  for (const std::string unit : {"ờ", "😀", "aờ", "ớa\n", "x"}) {
    for (std::size_t count = 4; count < 70; ++count) {
      std::string text;
      for (std::size_t i = 0; i < count; ++i) text += unit;
      write_file(folder.file("a"), text);
      const auto result = prepare_data({folder.file("a")}, folder.file("out"), chars(0.5));
      const std::string train = text_of(folder.file("out"), result.train_path);
      EXPECT_EQ(train + text_of(folder.file("out"), result.validation_path), text);
      EXPECT_EQ(result.train_tokens, TokenFile(result.train_path).count());
      EXPECT_EQ(result.validation_tokens, TokenFile(result.validation_path).count());
      EXPECT_LE(train.size(), (text.size() + 1) / 2);
      if (text.size() >= 20) {
        EXPECT_GE(train.size(), text.size() / 4);
      }
      EXPECT_EQ(TokenFile(result.validation_path).vocabulary(), result.vocabulary);
    }
  }
}

// Texts are read by the piece of 256 KiB; no piece ends inside a character.
TEST(PrepareChars, LongTextsLoseNothingWhereTheyAreCut) {
  const TempDir folder;
  constexpr std::size_t kPiece = 1 << 18;
  for (const std::string character : {"ờ", "😀", "é", "x"}) {
    for (std::size_t shift = 0; shift < 4; ++shift) {
      std::string text(shift, 'a');
      while (text.size() < 2 * kPiece + 10) text += character;
      write_file(folder.file("a"), text);
      const auto result = prepare_data({folder.file("a")}, folder.file("out"), chars(0.25));
      EXPECT_EQ(result.train_tokens + result.validation_tokens,
                shift + (text.size() - shift) / character.size());
      EXPECT_EQ(text_of(folder.file("out"), result.train_path) +
                    text_of(folder.file("out"), result.validation_path),
                text);
      text[kPiece + 7] = '\xFF';
      write_file(folder.file("a"), text);
      EXPECT_THAT(error_of(ErrorCode::invalid_argument,
                           [&] { prepare_data({folder.file("a")}, folder.file("out"), chars()); }),
                  HasSubstr(character == "x" ? "not UTF-8 at byte offset 262151 (0xff)" : "not UTF-8 at"));
    }
  }
}

TEST(PrepareChars, TakesTheNarrowestWidthThatDoes) {
  const TempDir folder;
  std::string text;
  for (char32_t c = 0x4E00; c < 0x4E00 + 300; ++c) {
    const char bytes[] = {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3F)),
                          static_cast<char>(0x80 | (c & 0x3F))};
    text.append(bytes, 3);
  }
  write_file(folder.file("wide"), text);
  write_file(folder.file("narrow"), text.substr(0, 3 * 256));
  const auto wide = prepare_data({folder.file("wide")}, folder.file("out"), chars());
  EXPECT_EQ(wide.vocabulary, 300u);
  EXPECT_EQ(TokenFile(wide.train_path).token_bytes(), 2u);
  EXPECT_EQ(text_of(folder.file("out"), wide.train_path), text);
  const auto narrow = prepare_data({folder.file("narrow")}, folder.file("out"), chars());
  EXPECT_EQ(TokenFile(narrow.train_path).token_bytes(), 1u);
  EXPECT_EQ(text_of(folder.file("out"), narrow.train_path), text.substr(0, 3 * 256));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument,
                       [&] { prepare_data({folder.file("wide")}, folder.file("out"), chars(0, 1)); }),
              HasSubstr("300"));
}

TEST(PrepareChars, BytesTakeTheAlphabetAway) {
  const TempDir folder;
  write_file(folder.file("a"), "hello\n");
  const auto first = prepare_data({folder.file("a")}, folder.file("out"), chars());
  EXPECT_TRUE(std::filesystem::exists(first.alphabet_path));
  const auto second = prepare_data({folder.file("a")}, folder.file("out"), {.validation_share = 0});
  EXPECT_FALSE(std::filesystem::exists(first.alphabet_path));
  EXPECT_TRUE(second.alphabet_path.empty());
  EXPECT_EQ(second.vocabulary, 256u);
  EXPECT_EQ(text_of(folder.file("out"), second.train_path), "hello\n");
}

TEST(PrepareChars, RefusesInWords) {
  const TempDir folder;
  write_file(folder.file("good"), "trăm năm\n");
  const auto prepare = [&](const std::string& bytes, const PrepareOptions& options) {
    write_file(folder.file("bad"), bytes);
    return [&folder, options] {
      prepare_data({folder.file("good"), folder.file("bad")}, folder.file("out"), options);
    };
  };
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, prepare("năm\xC3", chars())),
              HasSubstr(folder.file("bad") + ": not UTF-8 at byte offset 4 (0xc3)"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, prepare("\xBFx", chars())),
              HasSubstr("not UTF-8 at byte offset 0 (0xbf)"));
  EXPECT_FALSE(std::filesystem::exists(folder.file("out")));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, prepare("x", {0, 0, "words"})),
              HasSubstr("tokenizer is 'words'; wanted bytes or chars"));
  write_file(folder.file("one"), "ờ");
  EXPECT_THAT(error_of(ErrorCode::invalid_argument,
                       [&] { prepare_data({folder.file("one")}, folder.file("out"), chars()); }),
              HasSubstr("too short to split: 1 characters"));
}

TEST(PrepareChars, TheTextOfKieu) {
  const TempDir folder;
  const std::string source = TERRACE_SOURCE_DIR "/configs/kieu.txt";
  const auto result = prepare_data({source}, folder.file("out"), chars());
  EXPECT_EQ(result.train_tokens, 130u);
  EXPECT_EQ(result.vocabulary, 39u);
  EXPECT_EQ(text_of(folder.file("out"), result.train_path), read_file(source));
  const TokenFile tokens(result.train_path);
  const DistributedSampler sampler(tokens, {.context = 16,
                                            .samples_per_step = 32,
                                            .contributions = 2,
                                            .stride = 1,
                                            .last_batch = LastBatch::short_of_full});
  EXPECT_EQ(sampler.windows(), 114u);
  EXPECT_EQ(sampler.steps_per_epoch(), 4u);
  EXPECT_EQ(sampler.samples_of_step(3), 18u);
  EXPECT_EQ(sampler.contribution_samples(0, 3), 9u);
}

}  // namespace
}  // namespace terrace
