#include "src/engine/alike.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "src/collectives/local_communicator.h"
#include "tests/support/error_of.h"
#include "tests/support/watchdog.h"

namespace terrace {
namespace {

// What require_alike says on each rank; empty where it says nothing.
std::vector<std::string> said(const std::vector<Settings>& by_rank) {
  const Watchdog watchdog("require_alike");
  auto handles = make_local_world(static_cast<int>(by_rank.size()), {});
  std::vector<std::string> words(by_rank.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    threads.emplace_back([&, rank, world = std::move(handles[rank])] {
      words[rank] = error_of([&] { require_alike(*world, by_rank[rank]); });
      world->barrier({"the end", kNoUnit, 0});  // the world lives on: nobody was left waiting
    });
  }
  for (std::thread& thread : threads) thread.join();
  return words;
}

const Settings kPlain{{"model.width", "32"}, {"optimizer.lr", "0.1"}, {"data", "\xFF\n\"x\""}};

Settings with(const std::string& name, const std::string& value) {
  Settings settings = kPlain;
  for (auto& [own, old] : settings) {
    if (own == name) old = value;
  }
  return settings;
}

TEST(RequireAlike, SaysNothingWhereAllAreTheSame) {
  for (const std::size_t ranks : {1, 2, 5}) {
    for (const std::string& words : said(std::vector<Settings>(ranks, kPlain))) EXPECT_EQ(words, "");
    for (const std::string& words : said(std::vector<Settings>(ranks))) EXPECT_EQ(words, "");
  }
}

TEST(RequireAlike, NamesTheKeyTheValuesAndTheRanks) {
  const std::string begin = "invalid argument: the processes of a run were not given the same: ";
  for (const auto& words : said({kPlain, with("model.width", "64")}))
    EXPECT_EQ(words, begin + "model.width = 32 on rank 0, 64 on rank 1");
  for (const auto& words : said({kPlain, with("optimizer.lr", "1"), with("optimizer.lr", "2"), kPlain}))
    EXPECT_EQ(words, begin + "optimizer.lr = 0.1 on ranks 0 and 3, 1 on rank 1, 2 on rank 2");
  for (const auto& words : said({with("model.width", "1"), kPlain, with("optimizer.lr", "1")})) {
    EXPECT_EQ(words, begin +
                         "model.width = 1 on rank 0, 32 on ranks 1 and 2; "
                         "optimizer.lr = 0.1 on ranks 0 and 1, 1 on rank 2");
  }
}

TEST(RequireAlike, ASettingThatOneLacksIsADifference) {
  Settings more = kPlain;
  more.emplace_back("commit", "2");
  for (const auto& words : said({kPlain, more}))
    EXPECT_EQ(words.substr(words.rfind(": ") + 2), "commit = nothing on rank 0, 2 on rank 1");
}

TEST(RequireAlike, TellsTheFirstOfMany) {
  Settings a, b;
  for (int i = 0; i < 7; ++i) {
    a.emplace_back("key " + std::to_string(i), "a");
    b.emplace_back("key " + std::to_string(i), "b");
  }
  for (const auto& words : said({a, b})) {
    EXPECT_NE(words.find("key 3 = a on rank 0, b on rank 1; and 3 more"), std::string::npos) << words;
    EXPECT_EQ(words.find("key 4"), std::string::npos) << words;
  }
}

}  // namespace
}  // namespace terrace
