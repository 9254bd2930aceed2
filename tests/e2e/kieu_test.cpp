// The textbook demonstration, as the program shows it: two ranks that began from different seeds learn four
// lines of verse by heart and end with the same parameters, under every stage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <regex>
#include <utility>

#include "tests/e2e/program.h"

namespace terrace::e2e {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr const char* kStages[] = {"0", "1", "2", "3", "hybrid_shard"};

class KieuTest : public testing::Test {
 protected:
  KieuTest() {
    const Outcome prepared =
        run_program(folder_.path(), {"data", "prepare", TERRACE_SOURCE_DIR "/configs/kieu.txt", "--tokenizer",
                                     "chars", "--validation", "0", "--out", "build/kieu/data"});
    EXPECT_EQ(prepared.code, 0) << prepared;
    EXPECT_THAT(prepared.out, HasSubstr("train.tokens: 130 tokens\n"));
    EXPECT_THAT(prepared.out, HasSubstr("alphabet.json: 39 characters\n"));
  }

  Outcome train(std::vector<std::string> options) const {
    std::vector<std::string> arguments{"train",     TERRACE_SOURCE_DIR "/configs/kieu.toml",
                                       "--metrics", "metrics.jsonl",
                                       "--set",     "store.path=" + std::to_string(++runs_)};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return run_program(folder_.path(), arguments);
  }
  Outcome two_ranks(const std::string& stage, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> options{"--stage", stage, "--compare-ranks"};
    options.insert(options.end(), more.begin(), more.end());
    return train(options);
  }

  std::vector<json> steps() const {
    std::ifstream file(folder_.path() + "/metrics.jsonl");
    std::vector<json> lines;
    for (std::string line; std::getline(file, line);) {
      json parsed = json::parse(line);
      if (parsed["event"] == "step") lines.push_back(std::move(parsed));
    }
    return lines;
  }

  static std::string hash(const Outcome& outcome) {
    const auto at = outcome.out.find("\nstate ");
    return at == std::string::npos ? "" : outcome.out.substr(at + 7, 32);
  }

  TempDir folder_;
  mutable int runs_ = 0;
};

// The first number of each rank after `before` in the text, such as "rank 0 57, rank 1 57".
std::array<double, 2> of_ranks(const std::string& text, const std::string& before) {
  std::smatch found;
  const std::regex pattern(before + " rank 0 ([0-9.]+), rank 1 ([0-9.]+)\n");
  if (!std::regex_search(text, found, pattern)) {
    ADD_FAILURE() << "no '" << before << "' in\n" << text;
    const double none = std::numeric_limits<double>::quiet_NaN();
    return {none, none};
  }
  return {std::stod(found[1]), std::stod(found[2])};
}

TEST_F(KieuTest, EveryStageLearnsTheSameByHeartFromUnlikeSeeds) {
  const Outcome one = train({"--ranks", "1"});
  ASSERT_EQ(one.code, 0) << one;
  ASSERT_EQ(hash(one).size(), 32u);
  const std::vector<json> alone = steps();
  ASSERT_EQ(alone.size(), 120u);
  for (const json& line : alone) EXPECT_FALSE(line.contains("rank_loss"));
  EXPECT_THAT(one.out, testing::Not(HasSubstr("ranks; epoch")));

  for (const char* stage : kStages) {
    SCOPED_TRACE(stage);
    const Outcome outcome = two_ranks(stage);
    ASSERT_EQ(outcome.code, 0) << outcome;
    EXPECT_EQ(hash(outcome), hash(one));
    EXPECT_EQ(of_ranks(outcome.out, "epoch 1: 114 windows of 17 tokens, taken by"), (std::array{57.0, 57.0}));
    EXPECT_THAT(outcome.out, HasSubstr("\nmax |rank 0 - rank 1| = 0 over 15776 parameters\n"));
    const auto lines = steps();
    ASSERT_EQ(lines.size(), 120u);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      EXPECT_EQ(lines[i]["loss"], alone[i]["loss"]);
      EXPECT_EQ(lines[i]["grad_norm"], alone[i]["grad_norm"]);
      // Each rank has half of the windows, 9 of the short batches' 18: the loss is the mean of the two.
      ASSERT_EQ(lines[i]["rank_loss"].size(), 2u);
      const double mean =
          (lines[i]["rank_loss"][0].get<double>() + lines[i]["rank_loss"][1].get<double>()) / 2;
      EXPECT_NEAR(mean, lines[i]["loss"].get<double>(), 1e-12) << i;
    }
    const auto printed_first = of_ranks(outcome.out, "own targets, step 1:");
    const auto printed_last = of_ranks(outcome.out, "own targets, step 120:");
    const auto printed_epoch = of_ranks(outcome.out, "own targets, epoch 30 up to there:");
    for (const std::size_t rank : {0, 1}) {
      const auto loss = [&](std::size_t step) { return lines[step - 1]["rank_loss"][rank].get<double>(); };
      EXPECT_NEAR(loss(1), std::log(39.0), 0.1);
      EXPECT_LT(loss(120), 0.3);
      EXPECT_NEAR(printed_first[rank], loss(1), 5.1e-5);
      EXPECT_NEAR(printed_last[rank], loss(120), 5.1e-5);
      const double epoch = (16 * (loss(117) + loss(118) + loss(119)) + 9 * loss(120)) / 57;
      EXPECT_LT(epoch, 0.29);
      EXPECT_NEAR(printed_epoch[rank], epoch, 5.1e-5);
    }
    // Every stage sends what the closed forms say for one contribution a rank: 2P(N-1)/N elements of 4 bytes
    // over the padded P, 24576; this model gathers nothing twice. The norm's exact sum is 69 numbers of 8.
    EXPECT_THAT(outcome.out, HasSubstr("a step 98856 bytes in "));
    static_assert(98856 == 24576 * 4 + 69 * 8);
  }
}

// The numbers in a text, and the text without them.
std::pair<std::vector<double>, std::string> taken_apart(const std::string& text) {
  static const std::regex kNumber("-?[0-9]+\\.?[0-9]*(e[-+][0-9]+)?");
  std::vector<double> numbers;
  for (std::sregex_iterator at(text.begin(), text.end(), kNumber), end; at != end; ++at)
    numbers.push_back(std::stod(at->str()));
  // A number's width may differ by a digit.
  return {numbers, std::regex_replace(std::regex_replace(text, kNumber, "#"), std::regex(" +"), " ")};
}

// docs/kieu.md has this output, but for the last digits: another processor's matrix products round otherwise.
void expect_in_page(const std::string& output) {
  const std::string page = read_file(TERRACE_SOURCE_DIR "/docs/kieu.md");
  const std::string first = output.substr(0, output.find('\n'));
  const std::size_t begin = page.find(first);
  ASSERT_NE(begin, std::string::npos) << first;
  const auto [wanted, words] = taken_apart(output);
  const auto [got, page_words] = taken_apart(page.substr(begin, page.find("```", begin) - begin));
  EXPECT_EQ(page_words, words);
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], wanted[i], 1e-3 * std::abs(wanted[i]) + 1e-4);
}

TEST_F(KieuTest, ThePageShowsWhatTheProgramPrints) {
  const Outcome trained = two_ranks("3");
  ASSERT_EQ(trained.code, 0) << trained;
  ASSERT_THAT(trained.out, HasSubstr("2 ranks; epoch 1"));
  expect_in_page(trained.out.substr(trained.out.find("2 ranks; epoch 1")));
  const std::string config = TERRACE_SOURCE_DIR "/configs/kieu.toml";
  const Outcome demo = run_program(folder_.path(), {"demo", "uneven-mean", config});
  ASSERT_EQ(demo.code, 0) << demo;
  expect_in_page(demo.out);
  const Outcome plan =
      run_program(folder_.path(), {"plan", config, "--stage", "hybrid_shard", "--no-measure"});
  ASSERT_EQ(plan.code, 0) << plan;
  const std::size_t begin = plan.out.find("one of 2 ranks"), end = plan.out.find("where each class");
  ASSERT_LT(begin, end) << plan.out;
  expect_in_page(plan.out.substr(begin, end - begin));
}

// Rank 1 begins from train.seed + 1, and nothing of it is left.
TEST_F(KieuTest, TheSeedIsThatOfRankZero) {
  const Config config = load_config(TERRACE_SOURCE_DIR "/configs/kieu.toml");
  EXPECT_EQ(config.ranks.count, 2u);
  EXPECT_TRUE(config.ranks.own_seeds);
  const Outcome own = two_ranks("3");
  const Outcome second = train({"--ranks", "1", "--set", "train.seed=2"});
  ASSERT_EQ(second.code, 0) << second;
  EXPECT_NE(hash(own), hash(second));
  EXPECT_EQ(hash(two_ranks("3", {"--set", "train.seed=2"})), hash(second));
}

TEST_F(KieuTest, ComparingRanksIsRefusedWhereItMeansNothing) {
  const Outcome one = train({"--ranks", "1", "--compare-ranks"});
  EXPECT_EQ(one.code, 1);
  EXPECT_THAT(one.err, HasSubstr("ranks.count = 1; wanted 2 or more"));
  const Outcome large = train({"--ranks", "2", "--compare-ranks", "--set", "model.width=2400"});
  EXPECT_EQ(large.code, 1);
  EXPECT_THAT(large.err, HasSubstr("keeps a copy of all parameters for each: the model has 69"));
  EXPECT_THAT(large.err, HasSubstr("wanted at most 67108864"));
}

// ranks.own_seeds over meshes and tiers: states in memory, on disk (read as initial values again by the first
// step), half and half; and a store that goes on.
TEST(OwnSeedsTest, GivesTheBitsOfOneSeed) {
  Workspace workspace;
  struct Mesh {
    std::uint32_t ranks;
    const char* stage;
    std::uint32_t replicas;
  };
  const Mesh kMeshes[] = {
      {2, "0", 0}, {2, "1", 0}, {3, "2", 0}, {4, "3", 0}, {3, "3", 0}, {4, "hybrid_shard", 2},
      {4, "0", 0}, {4, "1", 0}, {2, "2", 0}, {3, "1", 0}, {3, "0", 0}, {3, "hybrid_shard", 3}};
  const auto small = [](Config config) {
    config.train.steps = 2;
    config.train.micro_batch = 2;
    config.train.micro_batches = 4;
    config.placement.chunk_numel = 12288;
    config.ranks.time_limit_s = 20;
    config.optimizer.schedule = "constant";
    return config;
  };
  const Record one = run(small(workspace.config()));
  std::size_t place = 0;
  for (const Mesh& mesh : kMeshes) {
    Config config = small(workspace.config_on_disk());
    config.ranks.count = mesh.ranks;
    config.ranks.stage = mesh.stage;
    config.ranks.replicas = mesh.replicas;
    config.ranks.own_seeds = true;
    const PlacementShares kPlaces[] = {only("host"), only("nvme"), shares(0, 0.5, 0.5)};
    config.placement.optimizer_state = kPlaces[place++ % 3];
    EXPECT_EQ(run(config), one) << mesh.ranks << " ranks, stage " << mesh.stage << ", place " << place % 3;
    if (place % 4 != 0) continue;
    Config halves = config;
    halves.store.path += "-halves";
    halves.train.steps = 1;
    run(halves);
    halves.train.steps = 2;
    EXPECT_EQ(run(halves, true).hash, one.hash)
        << mesh.ranks << " ranks, stage " << mesh.stage << ", resumed";
  }
}

}  // namespace
}  // namespace terrace::e2e
