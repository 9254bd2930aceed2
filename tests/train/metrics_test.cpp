#include "src/train/metrics.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "src/base/random.h"
#include "terrace/error.h"
#include "tests/support/temp_dir.h"

namespace terrace {
namespace {

using nlohmann::json;

class MetricsTest : public testing::Test {
 protected:
  std::string read() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::vector<json> lines() const {
    std::istringstream text(read());
    std::vector<json> parsed;
    for (std::string line; std::getline(text, line);) parsed.push_back(json::parse(line));
    return parsed;
  }
  void write(const std::string& text) const { std::ofstream(path_, std::ios::binary) << text; }

  // Steps 1..steps, an evaluation after every second.
  void run(std::uint64_t steps, bool end) const {
    MetricsWriter writer(path_);
    for (std::uint64_t step = 1; step <= steps; ++step) {
      writer.step({step, 1.0 / static_cast<double>(step), 0.5, 1e-3, 1000, false, {{"compute", 0.25}}});
      if (step % 2 == 0) writer.eval(step, 2.0);
    }
    if (end) writer.end({"abc", steps, {{"host", 12}}, std::nullopt});
  }

  TempDir folder_;
  const std::string path_ = folder_.file("metrics.jsonl");
};

TEST_F(MetricsTest, TheEndTellsTheStepOverItsBoundWhereItIsKnown) {
  for (const bool known : {true, false}) {
    {
      MetricsWriter writer(path_);
      EndMetrics end{"abc", 3, {{"resident_bytes", 12}}, std::nullopt};
      if (known) end.step_over_bound = 1.0625;
      writer.end(end);
    }
    const json line = lines().at(0);
    EXPECT_EQ(line["peak"]["resident_bytes"], 12);
    EXPECT_EQ(line.contains("step_over_bound"), known);
    EXPECT_EQ(line.value("step_over_bound", 0.0), known ? 1.0625 : 0.0);
  }
}

TEST_F(MetricsTest, FloatsReadBackExactly) {
  std::vector<double> values{0.0, -0.0,         0.1, 1.0 / 3, 1e-300, 5e-324, 1.7976931348623157e308,
                             3.0, 123456789.125};
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const auto value = std::bit_cast<double>(random_bits(1, 2, i, 3));
    if (std::isfinite(value)) values.push_back(value);
  }
  {
    MetricsWriter writer(path_);
    for (std::size_t i = 0; i < values.size(); ++i) {
      writer.step({i, values[i], values[i], values[i], values[i], false, {{"nvme", values[i]}}});
      writer.eval(i, values[i]);
    }
  }
  const auto parsed = lines();
  ASSERT_EQ(parsed.size(), 2 * values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    for (const auto& number :
         {parsed[2 * i]["loss"], parsed[2 * i]["grad_norm"], parsed[2 * i]["lr"],
          parsed[2 * i]["tokens_per_s"], parsed[2 * i]["lanes"]["nvme"], parsed[2 * i + 1]["loss"]}) {
      EXPECT_EQ(std::bit_cast<std::uint64_t>(number.get<double>()), std::bit_cast<std::uint64_t>(values[i]));
    }
  }
}

TEST_F(MetricsTest, LinesHaveTheDocumentedKeys) {
  run(2, true);
  EXPECT_EQ(read(),
            "{\"event\":\"step\",\"step\":1,\"loss\":1.0,\"grad_norm\":0.5,\"lr\":0.001,\"tokens_per_s\":"
            "1000.0,\"lanes\":"
            "{\"compute\":0.25}}\n"
            "{\"event\":\"step\",\"step\":2,\"loss\":0.5,\"grad_norm\":0.5,\"lr\":0.001,\"tokens_per_s\":"
            "1000.0,\"lanes\":"
            "{\"compute\":0.25}}\n"
            "{\"event\":\"eval\",\"step\":2,\"loss\":2.0}\n"
            "{\"event\":\"end\",\"state_hash\":\"abc\",\"steps\":2,\"peak\":{\"host\":12}}\n");
}

TEST_F(MetricsTest, WhatIsNoNumberIsNull) {
  {
    MetricsWriter writer(path_);
    writer.step({1, std::nan(""), std::numeric_limits<double>::infinity(), 0, 0, true, {}});
  }
  const auto line = lines().at(0);
  EXPECT_TRUE(line["loss"].is_null());
  EXPECT_TRUE(line["grad_norm"].is_null());
  EXPECT_EQ(line["dropped"], true);
}

TEST_F(MetricsTest, ResumeCutsBackToTheCommittedStep) {
  for (const bool end : {false, true}) {
    for (std::uint64_t committed = 0; committed <= 7; ++committed) {
      run(6, end);
      { MetricsWriter writer(path_, committed); }
      const auto kept = lines();
      const std::uint64_t steps = std::min<std::uint64_t>(committed, 6);
      // The evaluation at the committed step goes too: the resumed run repeats it.
      const std::uint64_t evaluations = (committed > 6 ? 6 : committed == 0 ? 0 : committed - 1) / 2;
      ASSERT_EQ(kept.size(), steps + evaluations) << committed;
      for (const auto& line : kept) {
        EXPECT_NE(line["event"], "end");
        EXPECT_LE(line["step"], committed);
      }
      MetricsWriter(path_, committed).step({committed + 1, 0, 0, 0, 0, false, {}});
      EXPECT_EQ(lines().back()["step"], committed + 1);
    }
  }
}

TEST_F(MetricsTest, TheCommittedStepsLineIsAddedWhereAKillLostIt) {
  run(6, false);
  const StepMetrics lost{4, 1.5, 2.5, 0.25, 8, false, {}};
  { MetricsWriter(path_, 3); }  // steps 1 to 3 are left
  { MetricsWriter(path_, 4, to_line(lost)); }
  EXPECT_EQ(lines().back()["step"], 4);
  EXPECT_EQ(lines().back()["loss"], 1.5);
  const auto before = lines();
  { MetricsWriter(path_, 4, to_line(lost)); }  // it is there now
  EXPECT_EQ(lines(), before);
  { MetricsWriter(path_, 9, to_line(lost)); }  // of another file's run: nothing is made up
  EXPECT_EQ(lines(), before);
}

TEST_F(MetricsTest, ATornLastLineIsRemovedWhereverItIsTorn) {
  run(2, false);
  const std::string whole = read();
  run(3, false);
  const std::string longer = read();
  for (std::size_t size = whole.size(); size < longer.size(); ++size) {
    write(longer.substr(0, size));
    { MetricsWriter writer(path_, 3); }
    EXPECT_EQ(read(), whole) << size;
  }
}

TEST_F(MetricsTest, ANewRunStartsAFreshFile) {
  run(6, true);
  run(1, false);
  EXPECT_EQ(lines().size(), 1u);
}

// Nothing can be read back from a pipe: a run that resumes only writes.
TEST_F(MetricsTest, ResumeIntoAPipeReadsNothing) {
  const std::string pipe = path_ + ".pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  {
    MetricsWriter writer(pipe, 3, "{}");
    writer.eval(4, 1.5);
  }
  char text[100] = {};
  EXPECT_GT(::read(reader, text, sizeof(text) - 1), 0);
  EXPECT_NE(std::string(text).find("\"step\":4"), std::string::npos) << text;
  ::close(reader);
}

TEST_F(MetricsTest, ResumeWithoutAFileMakesOne) {
  { MetricsWriter(path_, 5).eval(6, 1.0); }
  EXPECT_EQ(lines().size(), 1u);
}

TEST_F(MetricsTest, AFileOfSomethingElseIsLeftAlone) {
  for (const char* text :
       {"hello\nworld\n", "{\"event\":\"step\",\"step\":1}\n{\"name\":3}\n", "{\"event\":\"step\"}\n"}) {
    write(text);
    EXPECT_THROW(MetricsWriter(path_, 5), Error);
    EXPECT_EQ(read(), text);
  }
  EXPECT_THROW(MetricsWriter(folder_.file("no/such")), Error);
}

}  // namespace
}  // namespace terrace
