#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/cli/program.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class CliTest : public testing::Test {
 protected:
  Outcome run(const std::string& arguments) const { return program_.run(arguments); }

  void expect_error(const Outcome& outcome, int code, const std::string& words) const {
    EXPECT_EQ(outcome.code, code);
    EXPECT_THAT(outcome.err, StartsWith("error: "));
    EXPECT_THAT(outcome.err, HasSubstr(words));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }

  Program program_{TERRACE_PROGRAM};
};

TEST_F(CliTest, UsageErrorsAreCodeTwo) {
  expect_error(run(""), 2, "no command given");
  expect_error(run("trian"), 2, "trian");
  expect_error(run("data"), 2, "no command given");
  expect_error(run("data prepaer"), 2, "prepaer");
  expect_error(run("data prepare"), 2, "files is required");
  expect_error(run("data prepare x --out y --token-bytes many"), 2, "token-bytes");
  expect_error(run("store ls"), 2, "path is required");
  expect_error(run("version --loud"), 2, "--loud");
}

TEST_F(CliTest, HelpIsNoError) {
  const Outcome help = run("--help");
  EXPECT_EQ(help.code, 0);
  for (const char* command : {"data", "store", "doctor", "version"})
    EXPECT_THAT(help.out, HasSubstr(command));
  EXPECT_THAT(help.out, testing::Not(HasSubstr("config-reference")));
  EXPECT_EQ(run("data prepare --help").code, 0);
  EXPECT_THAT(run("version").out, StartsWith("terrace "));
}

TEST_F(CliTest, ConfigReferenceIsTheDocument) {
  const Outcome outcome = run("config-reference");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_TRUE(outcome.out == read_file(TERRACE_SOURCE_DIR "/docs/configuration.md"));
}

TEST_F(CliTest, DataPrepare) {
  std::ofstream(program_.file("text")) << std::string(100, 'a') << '\n' << std::string(10, 'b');
  const Outcome outcome = run("data prepare text --out d/e --validation 0.08 --token-bytes 2");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "d/e/train.tokens: 101 tokens\nd/e/validation.tokens: 10 tokens\n");
  EXPECT_EQ(std::filesystem::file_size(program_.file("d/e/validation.tokens")), 64u + 20u);
  expect_error(run("data prepare none --out d"), 1, "none: cannot open to read");
}

TEST_F(CliTest, DataPrepareCharacters) {
  std::ofstream(program_.file("text")) << "trăm năm\n";
  const Outcome outcome = run("data prepare text --out d --tokenizer chars --validation 0");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "d/train.tokens: 9 tokens\nd/alphabet.json: 7 characters\n");
  EXPECT_EQ(std::filesystem::file_size(program_.file("d/train.tokens")), 64u + 9u);
  EXPECT_FALSE(std::filesystem::exists(program_.file("d/validation.tokens")));
  std::ofstream(program_.file("text"), std::ios::app) << "\xFF";
  expect_error(run("data prepare text --out d --tokenizer chars"), 1, "text: not UTF-8 at byte offset 11");
  expect_error(run("data prepare text --out d --tokenizer words"), 1, "'words'");
}

TEST_F(CliTest, DoctorLooksAtTheFoldersOfAConfiguration) {
  std::ofstream(program_.file("c.toml")) << "[tiers]\nnvme = [{path = \"disk\"}]\n[store]\npath = \"shop\"\n";
  const Outcome outcome = run("doctor --config c.toml");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("\ndisk\n"));
  EXPECT_THAT(outcome.out, HasSubstr("\nshop\n"));
  expect_error(run("doctor --config none.toml"), 1, "none.toml");
}

TEST_F(CliTest, StoreCommandsNameWhatIsMissing) {
  expect_error(run("store ls nowhere"), 1, "nowhere");
  expect_error(run("store verify nowhere"), 1, "nowhere");
}

TEST_F(CliTest, AFullStandardOutputIsAnError) {
  const std::string command = TERRACE_PROGRAM " config-reference >/dev/full 2>" + program_.file("err");
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_THAT(read_file(program_.file("err")), StartsWith("error: "));
}

#ifdef TERRACE_HAS_TRAIN
constexpr const char* kTiny =
    "[model]\nlayers = 2\nwidth = 32\nheads = 2\ncontext = 16\n[data]\npath = \"data\"\n"
    "[train]\nsteps = 3\nmicro_batch = 2\n";

TEST_F(CliTest, PlanSaysWhetherItFits) {
  std::ofstream(program_.file("c.toml")) << kTiny;
  const Outcome fits = run("plan c.toml");
  EXPECT_EQ(fits.code, 0) << fits.err;
  EXPECT_THAT(fits.out, HasSubstr("host"));
  const Outcome small = run("plan c.toml --set tiers.host=64KiB");
  EXPECT_EQ(small.code, 1);
  EXPECT_THAT(small.out, HasSubstr("host"));
}

TEST_F(CliTest, PlanSaysWhatStaysWholeOnEveryRank) {
  std::ofstream(program_.file("c.toml")) << kTiny;
  const std::string plan = "plan c.toml --ranks 2 --set ranks.persist_below_numel=";
  EXPECT_THAT(run(plan + "32").out, testing::Not(HasSubstr("stay whole on every rank")));
  EXPECT_THAT(run(plan + "33").out,
              HasSubstr("  1 of 4 units stay whole on every rank (head): 8 KiB each\n"));
  EXPECT_THAT(run(plan + "8193").out, HasSubstr("  4 of 4 units stay whole on every rank: "));
  EXPECT_THAT(run(plan + "33 --stage 2").out, testing::Not(HasSubstr("stay whole on every rank")));
}

TEST_F(CliTest, OverridesStandBeforeAndAfterTheFile) {
  std::ofstream(program_.file("c.toml")) << kTiny;
  EXPECT_EQ(run("plan --set train.steps=4 c.toml").code, 0);
  EXPECT_EQ(run("plan c.toml --set train.steps=4 --set train.seed=2").code, 0);
  EXPECT_EQ(run("plan c.toml --set train.steps=4 train.seed=2").code, 0);
  expect_error(run("plan --set train.stepz=4 c.toml"), 1, "the nearest is train.steps");
  expect_error(run("plan c.toml --set train.steps=4 train.sead=2"), 1, "the nearest is train.seed");
  expect_error(run("plan c.toml --set"), 2, "--set");
  expect_error(run("plan"), 2, "config is required");
}

TEST_F(CliTest, TrainNamesWhatIsMissing) {
  std::ofstream(program_.file("c.toml")) << kTiny;
  const Outcome outcome = run("train c.toml");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("error: "));
  EXPECT_THAT(outcome.err, HasSubstr("data"));
}
#endif

}  // namespace
}  // namespace terrace
