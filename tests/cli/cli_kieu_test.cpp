// configs/kieu.toml as a user runs it: characters, overlapping samples, short last batches, learnt by heart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "tests/cli/program.h"

namespace terrace {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class CliKieuTest : public testing::Test {
 protected:
  CliKieuTest() {
    const Outcome prepared =
        program_.run("data prepare " TERRACE_SOURCE_DIR
                     "/configs/kieu.txt --tokenizer chars --validation 0 --out build/kieu/data");
    EXPECT_EQ(prepared.code, 0) << prepared.err;
    EXPECT_THAT(prepared.out, HasSubstr("train.tokens: 130 tokens\n"));
    EXPECT_THAT(prepared.out, HasSubstr("alphabet.json: 39 characters\n"));
  }

  Outcome run(const std::string& command, const std::string& rest = "") const {
    return program_.run(command + " " TERRACE_SOURCE_DIR "/configs/kieu.toml " + rest);
  }

  std::vector<json> steps() const {
    std::istringstream text(read_file(program_.file("m.jsonl")));
    std::vector<json> lines;
    for (std::string line; std::getline(text, line);) {
      json parsed = json::parse(line);
      if (parsed["event"] == "step") lines.push_back(std::move(parsed));
    }
    return lines;
  }

  static std::string hash(const Outcome& outcome) {
    const auto at = outcome.out.find("\nstate ");
    return at == std::string::npos ? "" : outcome.out.substr(at + 7, 32);
  }

  Program program_{TERRACE_PROGRAM};
};

TEST_F(CliKieuTest, IsLearntByHeart) {
  const Outcome outcome = run("train", "--metrics m.jsonl");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto lines = steps();
  ASSERT_EQ(lines.size(), 120u);
  // ln 39 = 3.66 at first: nothing is known. The figures are PyTorch's in float64, from the same initial
  // weights, with the order of samples computed apart; steps 4, 32, ... are short ones.
  const std::pair<std::size_t, std::array<double, 2>> kTorch[] = {
      {1, {3.6816197090, 1.33399822}},  {2, {3.5517462864, 1.01313648}},  {4, {3.3791473336, 1.18474522}},
      {32, {1.7286101463, 1.70146627}}, {60, {0.8728136339, 1.93533512}}, {88, {0.4199479280, 2.00476687}},
      {120, {0.2401448155, 2.02981219}}};
  for (const auto& [step, want] : kTorch) {
    EXPECT_NEAR(lines[step - 1]["loss"].get<double>(), want[0], 1e-5 * want[0]) << step;
    EXPECT_NEAR(lines[step - 1]["grad_norm"].get<double>(), want[1], 1e-4 * want[1]) << step;
  }
  for (const json& line : lines) EXPECT_EQ(line["lr"], 3e-3);

  const Outcome sample = run("sample", "--prompt 'trăm năm' --tokens 122 --temperature 0");
  EXPECT_EQ(sample.code, 0) << sample.err;
  EXPECT_EQ(sample.out, read_file(TERRACE_SOURCE_DIR "/configs/kieu.txt") + "\n");
  const Outcome other = run("sample", "--prompt Kiều --tokens 5");
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.err, HasSubstr("'K' (U+004B) at byte 0 is not one of the 39 characters"));
  const Outcome narrow = run("train", "--set model.vocabulary=38 --set store.path=other");
  EXPECT_EQ(narrow.code, 1);
  EXPECT_THAT(narrow.err, HasSubstr("larger than model.vocabulary = 38"));
}

TEST_F(CliKieuTest, AStopInsideAnEpochChangesNothing) {
  const std::string whole = hash(run("train", "--set store.path=whole"));
  ASSERT_EQ(whole.size(), 32u);
  for (const int stop : {3, 4, 5, 118}) {
    const std::string store = " --set store.path=s" + std::to_string(stop);
    ASSERT_EQ(run("train", store + " --set train.steps=" + std::to_string(stop)).code, 0);
    const Outcome resumed = run("train", store + " --resume");
    EXPECT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_EQ(hash(resumed), whole) << stop;
  }
  const Outcome stride =
      run("train", "--set store.path=s3 --resume --set train.steps=121 --set data.stride=2");
  EXPECT_EQ(stride.code, 1);
  EXPECT_THAT(stride.err, HasSubstr("the saved run had stride = 1; this one has 2"));
}

}  // namespace
}  // namespace terrace
