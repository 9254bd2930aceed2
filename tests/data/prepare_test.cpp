#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/data/token_file.h"
#include "terrace/data.h"
#include "tests/data/file_text.h"

namespace terrace {
namespace {

using testing::HasSubstr;

std::string text_of(const std::string& path) {
  const TokenFile file(path);
  std::string text;
  for (std::uint64_t i = 0; i < file.count(); ++i) text += static_cast<char>(file[i]);
  return text;
}

std::string lines(std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += "line " + std::to_string(i) + '\n';
  return text;
}

TEST(PrepareData, SplitsAtANewlineAndKeepsEveryByte) {
  const TempDir folder;
  std::string first = lines(300);
  first += '\0';
  first += "\xff\xfe";
  const std::string second = lines(77);
  write_file(folder.file("a"), first);
  write_file(folder.file("b"), second);
  for (const std::uint32_t width : {1u, 2u, 4u}) {
    const auto result =
        prepare_data({folder.file("a"), folder.file("b")}, folder.file("out/deep"), {0.05, width});
    const std::string train = text_of(result.train_path);
    const std::string validation = text_of(result.validation_path);
    EXPECT_EQ(train + validation, first + second);
    EXPECT_EQ(train.back(), '\n');
    EXPECT_EQ(result.train_tokens, train.size());
    EXPECT_EQ(result.validation_tokens, validation.size());
    const double share =
        static_cast<double>(validation.size()) / static_cast<double>(train.size() + validation.size());
    EXPECT_GE(share, 0.049);
    EXPECT_LE(share, 0.06);
    EXPECT_EQ(TokenFile(result.train_path).token_bytes(), width);
    EXPECT_EQ(TokenFile(result.train_path).vocabulary(), 256u);
  }
}

TEST(PrepareData, CutsAtTheByteWhenNoNewlineIsNear) {
  const TempDir folder;
  write_file(folder.file("a"), "x\n" + std::string(998, 'y'));
  const auto result = prepare_data({folder.file("a")}, folder.file("out"), {});
  EXPECT_EQ(result.train_tokens, 950u);
  EXPECT_EQ(result.validation_tokens, 50u);
}

TEST(PrepareData, NewlineRightAtTheBorder) {
  const TempDir folder;
  for (const std::size_t newline : {48u, 49u, 50u}) {  // the border stands between bytes 49 and 50
    std::string text(100, 'y');
    text[newline] = '\n';
    write_file(folder.file("a"), text);
    const auto result = prepare_data({folder.file("a")}, folder.file("out"), {0.5, 1});
    EXPECT_EQ(result.train_tokens, newline < 50 ? newline + 1 : 50u);
  }
}

TEST(PrepareData, WithoutValidation) {
  const TempDir folder;
  write_file(folder.file("a"), lines(10));
  const auto with = prepare_data({folder.file("a")}, folder.file("out"), {});
  EXPECT_TRUE(std::filesystem::exists(with.validation_path));
  const auto without = prepare_data({folder.file("a")}, folder.file("out"), {0, 1});
  EXPECT_TRUE(without.validation_path.empty());
  EXPECT_FALSE(std::filesystem::exists(with.validation_path));
  EXPECT_EQ(text_of(without.train_path), lines(10));
}

// The one that is cut short here is so by prepare_data itself, which writes under that name.
TEST(PrepareData, ATextCutShortIsAnErrorThatSaysWhere) {
  const TempDir folder;
  const std::string text = folder.file("out/train.tokens.partial");
  std::filesystem::create_directory(folder.file("out"));
  write_file(text, lines(2000));
  EXPECT_THAT(error_of(ErrorCode::corrupt, [&] { prepare_data({text}, folder.file("out"), {}); }),
              HasSubstr(text + ": cut short while it was being read: wanted bytes 0 to "));
  EXPECT_FALSE(std::filesystem::exists(folder.file("out/train.tokens")));
}

TEST(PrepareData, RefusesInWords) {
  const TempDir folder;
  const auto prepare = [&](std::vector<std::string> files, PrepareOptions options = {}) {
    return [&folder, files, options] { prepare_data(files, folder.file("out"), options); };
  };
  write_file(folder.file("empty"), "");
  write_file(folder.file("tiny"), "abc");
  write_file(folder.file("good"), lines(100));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, prepare({})), HasSubstr("at least one text file"));
  EXPECT_THAT(error_of(ErrorCode::not_found, prepare({folder.file("none")})), HasSubstr("none"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, prepare({folder.file("good"), folder.file("empty")})),
              HasSubstr("empty: empty; wanted text"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, prepare({folder.file("tiny")})),
              HasSubstr("too short to split: 3 bytes"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, prepare({folder.path()})), HasSubstr("a directory"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, prepare({folder.file("good")}, {0.7, 1})),
              HasSubstr("0.7"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, prepare({folder.file("good")}, {0.1, 3})),
              HasSubstr("1, 2 or 4"));
  error_of(ErrorCode::io_failed, [&] { prepare_data({folder.file("good")}, folder.file("good/x"), {}); });
}

}  // namespace
}  // namespace terrace
