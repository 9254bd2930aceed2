#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <vector>

#include "tests/cli/program.h"

namespace terrace {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

class CliTrainTest : public testing::Test {
 protected:
  CliTrainTest() {
    std::string text;
    for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i * 7919 % 1000) + " of the text\n";
    program_.write("text", text);
    program_.write(
        "c.toml",
        "[model]\nlayers = 2\nwidth = 32\nheads = 2\ncontext = 16\n[data]\npath = \"data\"\n"
        "[train]\nsteps = 8\nmicro_batch = 2\neval_every = 4\n"
        "[tiers]\nnvme = [{path = \".\", size = \"64MiB\"}]\n[placement]\noptimizer_state = \"nvme\"\n"
        "chunk_numel = 8192\n[store]\npath = \"store\"\n");
    EXPECT_EQ(program_.run("data prepare text --out data").code, 0);
  }

  std::vector<json> metrics() const {
    std::istringstream text(read_file(program_.file("m.jsonl")));
    std::vector<json> lines;
    for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
    return lines;
  }
  // Of the step and eval lines, what must not differ between an undisturbed and a resumed run.
  static std::vector<std::string> numbers(const std::vector<json>& lines) {
    std::vector<std::string> kept;
    for (const auto& line : lines) {
      json copy{{"event", line["event"]}};
      for (const char* name : {"step", "loss", "grad_norm", "lr", "state_hash", "steps"}) {
        if (line.contains(name)) copy[name] = line[name];
      }
      kept.push_back(copy.dump());
    }
    return kept;
  }

  Program program_{TERRACE_PROGRAM};
};

TEST_F(CliTrainTest, TrainsReportsAndSamples) {
  const Outcome outcome = program_.run("train c.toml --metrics m.jsonl");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, StartsWith("step 1/8  loss 5."));
  EXPECT_THAT(outcome.out, HasSubstr("\nstep 4  validation loss "));
  EXPECT_THAT(outcome.out, HasSubstr("\ntrained 8 steps: last loss "));
  const auto lines = metrics();
  ASSERT_EQ(lines.size(), 11u);  // 8 steps, 2 evaluations, the end
  EXPECT_EQ(lines[0]["step"], 1);
  EXPECT_TRUE(lines[0]["lanes"].contains("nvme"));
  EXPECT_EQ(lines[4]["event"], "eval");
  EXPECT_EQ(lines.back()["event"], "end");
  EXPECT_EQ(lines.back()["steps"], 8);
  EXPECT_THAT(outcome.out, HasSubstr("state " + lines.back()["state_hash"].get<std::string>()));

  const Outcome sample = program_.run("sample c.toml --prompt line --tokens 20 --seed 3");
  EXPECT_EQ(sample.code, 0) << sample.err;
  EXPECT_THAT(sample.out, StartsWith("line"));
  EXPECT_EQ(sample.err.find("warning"), std::string::npos) << sample.err;
  EXPECT_EQ(program_.run("sample c.toml --prompt line --tokens 20 --seed 3").out, sample.out);

  const Outcome listing = program_.run("store ls store");
  EXPECT_EQ(listing.code, 0) << listing.err;
  EXPECT_THAT(listing.out, HasSubstr("step 8"));
  EXPECT_THAT(listing.out, HasSubstr("wte.weight[0:"));
  const Outcome verdict = program_.run("store verify store");
  EXPECT_EQ(verdict.code, 0) << verdict.err;
  EXPECT_THAT(verdict.out, HasSubstr("0 bad"));

  const Outcome again = program_.run("train c.toml");
  EXPECT_EQ(again.code, 1);
  EXPECT_THAT(again.err, HasSubstr("error: "));
  EXPECT_THAT(again.err, HasSubstr("--resume"));
}

TEST_F(CliTrainTest, ASignalStopsCleanlyAndResumeGoesOnToTheSameNumbers) {
  const std::string base =
      "c.toml --metrics m.jsonl --set train.steps=400 optimizer.schedule=constant train.eval_every=0";
  ASSERT_EQ(program_.run("train " + base).code, 0);
  const auto undisturbed = numbers(metrics());
  for (const int number : {SIGINT, SIGTERM}) {
    std::filesystem::remove_all(program_.file("store"));
    const std::string fresh = "train " + base + " store.path=store" + std::to_string(number);
    std::filesystem::remove(program_.file("m.jsonl"));
    const pid_t child = program_.start(fresh);
    for (int i = 0; i < 2000 && read_file(program_.file("m.jsonl")).size() < 2000; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    kill(child, number);
    const Outcome stopped = program_.wait(child);
    EXPECT_EQ(stopped.code, 0) << stopped.err;
    const auto end = metrics().back();
    EXPECT_EQ(end["event"], "end");
    if (end["steps"] == 400) GTEST_SKIP() << "the run ended before the signal reached it";
    EXPECT_THAT(stopped.out, HasSubstr("stopped after step " + end["steps"].dump() + " of 400, committed"));
    const Outcome resumed = program_.run(fresh + " --resume");
    EXPECT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_EQ(numbers(metrics()), undisturbed);
  }
}

}  // namespace
}  // namespace terrace
