#include "src/train/stage_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "src/base/units.h"
#include "src/engine/plan_request.h"
#include "src/plan/closed_form.h"
#include "terrace/error.h"
#include "tests/plan/tiny_models.h"

namespace terrace {
namespace {

// Units of 16 blocks each: every part of 4 ranks is equal.
ModelShape even_model() {
  ModelShape model = testing_models::tiny_model(2, false);
  for (UnitShape& unit : model.units) unit.tensors = {{unit.name + ".w", 16 * kBlockNumel, 0}};
  model.units[0].backward_reads_params = true;
  return model;
}

// The words of a line, by its first word.
std::map<std::string, std::vector<std::string>> lines_of(const std::string& text) {
  std::map<std::string, std::vector<std::string>> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string first;
    words >> first;
    for (std::string word; words >> word;) lines[first].push_back(word);
  }
  return lines;
}

TEST(StageTable, ShowsTheClosedFormsSideBySide) {
  PlanRequest request = testing_models::roomy_request(even_model(), 4, 4 * kBlockNumel);
  request.ranks = {Stage::gradients, 4, 1};
  const std::string text = stage_table(request);
  const auto lines = lines_of(text);
  const std::uint64_t padded = 4 * 16 * kBlockNumel;
  const auto has = [&](const std::string& name, std::uint64_t parameters, std::uint64_t gradients,
                       std::uint64_t states) {
    std::string joined;
    for (const std::string& word : lines.at(name)) joined += word + " ";
    for (const std::uint64_t bytes : {parameters, gradients, states})
      EXPECT_THAT(joined, testing::HasSubstr(format_bytes(bytes))) << name << "\n" << text;
  };
  has("0", 2 * padded, 2 * padded, 12 * padded);
  has("1", 2 * padded, 2 * padded, 12 * padded / 4);
  has("2", 2 * padded, 2 * padded / 4, 12 * padded / 4);
  has("3", 2 * padded / 4, 2 * padded / 4, 12 * padded / 4);
  has("hybrid", 2 * padded / 2, 2 * padded / 2, 12 * padded / 2);
  // Sent, by the program and by the form: 2P(N-1)/N elements of 2 bytes for stages 0 to 2.
  const std::string sent = format_bytes(2 * sent_numel(Stage::optimizer, padded, 4, 1));
  for (const char* stage : {"0", "1", "2"}) {
    const auto& words = lines.at(stage);
    std::string joined;
    for (const std::string& word : words) joined += word + " ";
    EXPECT_THAT(joined, testing::EndsWith(sent + " " + sent + " ")) << text;
  }
}

// Kept whole, all of it: parameters and what is sent are stage 2's.
TEST(StageTable, CountsWhatStaysWhole) {
  PlanRequest request = testing_models::roomy_request(even_model(), 4, 4 * kBlockNumel);
  request.ranks = {Stage::parameters, 4, 1};
  request.persist_below_numel = 16 * kBlockNumel + 1;
  const std::string text = stage_table(request);
  const auto lines = lines_of(text);
  EXPECT_EQ(std::vector(lines.at("3").begin() + 1, lines.at("3").end()),
            std::vector(lines.at("2").begin() + 1, lines.at("2").end()))
      << text;
  request.persist_below_numel = 0;
  EXPECT_EQ(lines_of(stage_table(request)).at("2"), lines.at("2"));
  EXPECT_NE(lines_of(stage_table(request)).at("3"), lines.at("3"));
}

// A frozen unit has parameters and the one stream of a master copy, no gradient.
TEST(StageTable, CountsOfFrozenTensorsWhatThereIs) {
  PlanRequest request = testing_models::roomy_request(even_model(), 4, 4 * kBlockNumel);
  request.ranks = {Stage::gradients, 4, 1};
  request.model.units[1].tensors[0].frozen = request.model.units[1].tensors[0].master_only = true;
  const std::string text = stage_table(request);
  const std::uint64_t unit = 16 * kBlockNumel, padded = 4 * unit;
  const auto lines = lines_of(text);
  std::string joined;
  for (const std::string& word : lines.at("0")) joined += word + " ";
  EXPECT_THAT(joined, testing::HasSubstr(format_bytes(2 * padded))) << text;
  EXPECT_THAT(joined, testing::HasSubstr(format_bytes(2 * (padded - unit)))) << text;
  EXPECT_THAT(joined, testing::HasSubstr(format_bytes(12 * (padded - unit) + 4 * unit))) << text;
}

TEST(StageTable, SaysWhatDoesNotFit) {
  PlanRequest request = testing_models::roomy_request(even_model(), 4, 4 * kBlockNumel);
  request.ranks = {Stage::parameters, 4, 1};
  request.optimizer_state = testing_models::kAllHost;
  request.budget_bytes[1] = 4 * kMiB;  // 3 MiB of states once, not four times
  const std::string text = stage_table(request);
  EXPECT_THAT(text, testing::HasSubstr("0 no_shard       does not fit the budgets")) << text;
  EXPECT_THAT(lines_of(text).at("3").size(), testing::Gt(6u)) << text;
}

TEST(RankShapeOf, StagesHaveTheirNamesAndRefuseMeshesThatAreNone) {
  Config config;
  config.ranks.count = 4;
  const auto shape = [&](const char* stage, std::uint32_t replicas) {
    config.ranks.stage = stage;
    config.ranks.replicas = replicas;
    return rank_shape(config);
  };
  EXPECT_EQ(shape("no_shard", 0), (RankShape{Stage::replicated, 4, 1}));
  EXPECT_EQ(shape("0", 1), shape("no_shard", 0));
  EXPECT_EQ(shape("1", 0), (RankShape{Stage::optimizer, 4, 1}));
  EXPECT_EQ(shape("shard_grad_op", 0), shape("2", 0));
  EXPECT_EQ(shape("full_shard", 0), shape("3", 0));
  EXPECT_EQ(shape("hybrid_shard", 0), (RankShape{Stage::parameters, 4, 2}));
  EXPECT_EQ(shape("hybrid_shard", 4), (RankShape{Stage::parameters, 4, 4}));
  EXPECT_THROW(shape("3", 2), Error);
  EXPECT_THROW(shape("hybrid_shard", 3), Error);
}

TEST(RankShapeOf, OrdersOfReductionWantAStageThatHasThem) {
  Config config;
  config.ranks.count = 4;
  const auto order = [&](const char* stage, const char* reduce, const char* hybrid) {
    config.ranks.stage = stage;
    config.ranks.reduce = reduce;
    config.ranks.hybrid_reduce = hybrid;
    return rank_shape(config).reduction;
  };
  const auto refusal = [&](const char* stage, const char* reduce, const char* hybrid) {
    try {
      order(stage, reduce, hybrid);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  for (const char* stage : {"0", "no_shard", "1"}) EXPECT_EQ(order(stage, "last", "flat"), Reduction::last);
  for (const char* stage : {"0", "1", "2", "3", "hybrid_shard"}) {
    EXPECT_EQ(order(stage, "each", "flat"), Reduction::each);
    EXPECT_EQ(order(stage, "grouped", "flat"), Reduction::grouped);
  }
  EXPECT_EQ(order("hybrid_shard", "each", "hierarchical"), Reduction::hierarchical);
  for (const char* stage : {"2", "3", "hybrid_shard"}) {
    EXPECT_THAT(refusal(stage, "last", "flat"),
                testing::AllOf(testing::HasSubstr("ranks.reduce = last with ranks.stage = "),
                               testing::HasSubstr("stage 0 or 1")));
  }
  config.ranks.replicas = 1;  // nothing to be between
  EXPECT_EQ(order("hybrid_shard", "each", "hierarchical"), Reduction::grouped);
  config.ranks.replicas = 0;
  EXPECT_THAT(refusal("3", "each", "hierarchical"), testing::HasSubstr("wanted hybrid_shard"));
  EXPECT_THAT(refusal("hybrid_shard", "grouped", "hierarchical"), testing::HasSubstr("one of the two"));
}

// The table keeps the order where a stage has it, and shows what it costs and saves.
TEST(StageTable, ShowsSumsMadeBeforeTheFold) {
  PlanRequest request = testing_models::roomy_request(even_model(), 8, 4 * kBlockNumel);
  request.ranks = {Stage::replicated, 4, 1, Reduction::last};
  request.parameters = testing_models::kAllHost;
  const std::string text = stage_table(request);
  const auto lines = lines_of(text);
  EXPECT_THAT(
      text,
      testing::EndsWith(
          "  these have no order last and add up one by one: 2 shard_grad_op, 3 full_shard, hybrid 2x2\n"));
  request.ranks.reduction = Reduction::each;
  EXPECT_THAT(stage_table(request), testing::Not(testing::HasSubstr("no order")));
  const auto each = lines_of(stage_table(request));
  EXPECT_NE(lines.at("0"), each.at("0"));
  EXPECT_NE(lines.at("1"), each.at("1"));
  EXPECT_EQ(lines.at("2"), each.at("2"));
  EXPECT_EQ(lines.at("3"), each.at("3"));
}

}  // namespace
}  // namespace terrace
