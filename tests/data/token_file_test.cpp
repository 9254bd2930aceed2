#include "src/data/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "src/base/hash.h"
#include "tests/data/file_text.h"
#include "tests/support/overwrite.h"

namespace terrace {
namespace {

using testing::HasSubstr;

std::vector<std::uint32_t> pattern(std::size_t count, std::uint64_t vocabulary) {
  std::vector<std::uint32_t> tokens(count);
  for (std::size_t i = 0; i < count; ++i)
    tokens[i] = static_cast<std::uint32_t>((i * 2654435761u + 7) % vocabulary);
  return tokens;
}

void write_tokens(const std::string& path, std::uint32_t width, std::uint64_t vocabulary,
                  const std::vector<std::uint32_t>& tokens) {
  TokenFileWriter writer(path, width, vocabulary);
  writer.append(tokens);
  writer.finish();
}

TEST(TokenFile, RoundTripsEveryWidthAndSize) {
  const TempDir folder;
  const std::pair<std::uint32_t, std::uint64_t> kKinds[] = {
      {1, 256}, {1, 2}, {2, 65536}, {2, 50257}, {4, 70000}, {4, std::uint64_t{1} << 32}};
  for (const auto& [width, vocabulary] : kKinds) {
    for (const std::size_t count : {0, 1, 2, 3, 4095, 4096, 4097, (1 << 20) - 1, (1 << 20) + 1}) {
      const auto tokens = pattern(count, vocabulary);
      const std::string path = folder.file("t.tokens");
      {
        TokenFileWriter writer(path, width, vocabulary);
        writer.append(std::span(tokens).first(count / 3));  // in two pieces
        writer.append(std::span(tokens).subspan(count / 3));
        writer.finish();
      }
      const TokenFile file(path);
      ASSERT_EQ(file.count(), count);
      EXPECT_EQ(file.vocabulary(), vocabulary);
      EXPECT_EQ(file.token_bytes(), width);
      EXPECT_EQ(std::filesystem::file_size(path), kTokenHeaderBytes + count * width);
      EXPECT_EQ(file.checksum(), hash64(read_file(path).substr(kTokenHeaderBytes)));
      std::vector<std::uint32_t> back(count);
      file.read(0, back);
      EXPECT_EQ(back, tokens);
      if (count > 2) {
        EXPECT_EQ(file[count - 1], tokens[count - 1]);
        back.resize(count - 2);
        file.read(1, back);
        EXPECT_TRUE(std::equal(back.begin(), back.end(), tokens.begin() + 1));
      }
      EXPECT_THROW(file[count], Error);
    }
  }
}

TEST(TokenFile, ChecksumIsTheData) {
  const TempDir folder;
  auto tokens = pattern(1000, 256);
  write_tokens(folder.file("a"), 1, 256, tokens);
  write_tokens(folder.file("b"), 1, 256, tokens);
  tokens[500] ^= 1;
  write_tokens(folder.file("c"), 1, 256, tokens);
  EXPECT_EQ(TokenFile(folder.file("a")).checksum(), TokenFile(folder.file("b")).checksum());
  EXPECT_NE(TokenFile(folder.file("a")).checksum(), TokenFile(folder.file("c")).checksum());
}

TEST(TokenFile, RefusesWhatIsNoTokenFile) {
  const TempDir folder;
  const std::string path = folder.file("t.tokens");
  const auto open_error = [&](ErrorCode code, const std::string& bytes) {
    write_file(path, bytes);
    const std::string error = error_of(code, [&] { TokenFile file(path); });
    EXPECT_THAT(error, HasSubstr(path));
    return error;
  };
  EXPECT_THAT(error_of(ErrorCode::not_found, [&] { TokenFile file(folder.file("none")); }),
              HasSubstr("none"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { TokenFile file(folder.path()); }),
              HasSubstr("a directory"));
  EXPECT_THAT(open_error(ErrorCode::corrupt, ""), HasSubstr("empty"));
  EXPECT_THAT(open_error(ErrorCode::corrupt, "TERRTOKN"), HasSubstr("wanted a header of 64 bytes"));
  EXPECT_THAT(open_error(ErrorCode::corrupt, std::string(100, 'x')), HasSubstr("not a token file"));

  write_tokens(path, 2, 50257, pattern(100, 50257));
  const std::string good = read_file(path);
  EXPECT_THAT(open_error(ErrorCode::corrupt, good.substr(0, good.size() - 1)), HasSubstr("truncated"));
  EXPECT_THAT(open_error(ErrorCode::corrupt, good.substr(0, good.size() - 2)),
              HasSubstr("wanted 100 tokens of 2 bytes after the header; got 198 bytes"));
  EXPECT_THAT(open_error(ErrorCode::corrupt, good + "ab"), HasSubstr("too long"));
  EXPECT_THAT(open_error(ErrorCode::corrupt, good + "a"), HasSubstr("got 201 bytes"));
}

TEST(TokenFile, EveryFlippedByteIsRefused) {
  const TempDir folder;
  const std::string path = folder.file("t.tokens");
  write_tokens(path, 1, 256, pattern(32, 256));
  const std::string good = read_file(path);
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    write_file(path, bad);
    error_of(ErrorCode::corrupt, [&] { TokenFile file(path); });
  }
}

TEST(TokenFile, RefusesTokensOutsideTheVocabulary) {
  const TempDir folder;
  const std::string path = folder.file("t.tokens");
  for (const std::uint32_t width : {1u, 2u, 4u}) {
    TokenFileWriter writer(path, width, 100);
    const std::vector<std::uint32_t> tokens{0, 99, 100};
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { writer.append(tokens); }),
                HasSubstr("token 100 at position 2"));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
  // A file of another program: consistent checksums, yet a token too large.
  write_tokens(path, 4, 1000, {1, 2, 999, 3});
  std::string bytes = read_file(path);
  const std::uint64_t vocabulary = 999;
  std::memcpy(bytes.data() + 32, &vocabulary, 8);
  const std::uint64_t header_hash = hash64(bytes.data(), 56);
  std::memcpy(bytes.data() + 56, &header_hash, 8);
  write_file(path, bytes);
  EXPECT_THAT(error_of(ErrorCode::corrupt, [&] { TokenFile file(path); }),
              HasSubstr("token 999 at offset 72 is not below the vocabulary of 999"));
}

TEST(TokenFile, AFileCutShortIsAnErrorThatSaysWhere) {
  const TempDir folder;
  const std::string path = folder.file("t.tokens");
  for (const std::uint32_t width : {1u, 2u, 4u}) {
    const auto tokens = pattern(10000, 256);
    write_tokens(path, width, 256, tokens);
    TokenFile file(path);
    std::filesystem::resize_file(path, kTokenHeaderBytes + 100 * width);
    std::vector<std::uint32_t> out(100);
    file.read(0, out);  // what is still there
    EXPECT_TRUE(std::equal(out.begin(), out.end(), tokens.begin()));
    const auto wanted = [&](std::uint64_t from, std::uint64_t to) {
      return testing::AllOf(HasSubstr(path + ": cut short while it was being read: wanted bytes " +
                                      std::to_string(from) + " to " + std::to_string(to) + ";"),
                            HasSubstr("the file has " + std::to_string(64 + 100 * width) +
                                      " bytes, and had " + std::to_string(64 + 10000 * width)));
    };
    EXPECT_THAT(error_of(ErrorCode::corrupt, [&] { file.read(9000, out); }),
                wanted(64 + 9000 * width, 64 + 9100 * width));
    EXPECT_THAT(error_of(ErrorCode::corrupt, [&] { file.read(50, out); }),  // from its last byte on
                wanted(64 + 100 * width, 64 + 150 * width));
    EXPECT_THAT(error_of(ErrorCode::corrupt, [&] { file.require_unchanged(); }), HasSubstr("cut short"));
  }
}

TEST(TokenFile, TokensThatChangeInPlaceAreAnError) {
  const TempDir folder;
  const std::string path = folder.file("t.tokens");
  const auto tokens = pattern(5000, 256);
  write_tokens(path, 1, 256, tokens);
  TokenFile file(path);
  file.require_unchanged();
  const auto written = std::filesystem::last_write_time(path);
  overwrite(path, kTokenHeaderBytes + 4321, std::string(1, static_cast<char>(tokens[4321] ^ 1)));
  std::filesystem::last_write_time(path, written);  // as a tool that keeps times would
  EXPECT_THAT(error_of(ErrorCode::corrupt, [&] { file.require_unchanged(); }),
              testing::AllOf(HasSubstr(path + ": changed while it was being read"),
                             HasSubstr("offsets 64 to 5064 have checksum")));
}

TEST(TokenFile, WhatLeavesTheTokensAsTheyAreIsNoChange) {
  const TempDir folder;
  const std::string path = folder.file("t.tokens");
  const auto tokens = pattern(5000, 256);
  write_tokens(path, 1, 256, tokens);
  TokenFile file(path);
  overwrite(path, kTokenHeaderBytes + 17, std::string(1, static_cast<char>(tokens[17])));
  file.require_unchanged();
  std::filesystem::create_hard_link(path, folder.file("link"));
  file.require_unchanged();
  overwrite(path, kTokenHeaderBytes + 5000, "appended");
  file.require_unchanged();
  write_tokens(path, 1, 256, {1, 2, 3});  // another file of that name: this one is read on
  file.require_unchanged();
  std::vector<std::uint32_t> out(5000);
  file.read(0, out);
  EXPECT_EQ(out, tokens);
}

TEST(TokenFileWriter, RefusesWidthsThatDoNotFit) {
  const TempDir folder;
  const auto open = [&](std::uint32_t width, std::uint64_t vocabulary) {
    return [&folder, width, vocabulary] { TokenFileWriter writer(folder.file("t"), width, vocabulary); };
  };
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, open(3, 256)),
              HasSubstr("wanted tokens of 1, 2 or 4 bytes; got 3"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, open(1, 257)),
              HasSubstr("does not fit tokens of 1 bytes"));
  error_of(ErrorCode::invalid_argument, open(2, 65537));
  error_of(ErrorCode::invalid_argument, open(4, (std::uint64_t{1} << 32) + 1));
  error_of(ErrorCode::invalid_argument, open(1, 0));
  EXPECT_THAT(error_of(ErrorCode::io_failed, [&] { TokenFileWriter writer(folder.file("no/t"), 1, 256); }),
              HasSubstr("no/t.partial: cannot create"));
}

TEST(TokenFileWriter, ReplacesTheOldFileOnlyWhenFinished) {
  const TempDir folder;
  const std::string path = folder.file("t.tokens");
  write_tokens(path, 1, 256, {1, 2, 3});
  {
    TokenFileWriter writer(path, 1, 256);
    writer.append(std::vector<std::uint32_t>{9, 9});
  }
  EXPECT_EQ(TokenFile(path).count(), 3u);
  write_tokens(path, 1, 256, {9, 9});
  EXPECT_EQ(TokenFile(path).count(), 2u);
}

}  // namespace
}  // namespace terrace
