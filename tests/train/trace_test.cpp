#include "src/train/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "terrace/error.h"
#include "tests/support/temp_dir.h"
#include "tests/train/made_steps.h"

namespace terrace {
namespace {

using nlohmann::json;

class TraceTest : public testing::Test {
 protected:
  json read() const { return json::parse(std::ifstream(path_)); }
  static std::vector<json> of_phase(const json& trace, const std::string& phase) {
    std::vector<json> events;
    for (const json& event : trace["traceEvents"]) {
      if (event["ph"] == phase) events.push_back(event);
    }
    return events;
  }

  TempDir folder_;
  const std::string path_ = folder_.file("trace.json");
  PlanRequest request_ = made_request(true);
  Plan plan_ = make_plan(request_);
};

TEST_F(TraceTest, HasAnEventForEachOperationThatRan) {
  TraceWriter trace(path_, request_.model, plan_);
  const StepOutcome outcome = made_outcome(plan_, ProgramKind::train);
  trace.add(7, outcome);
  trace.write();
  const StepProgram& program = plan_.program(ProgramKind::train);
  std::map<std::size_t, json> by_op;
  for (const json& event : of_phase(read(), "X")) {
    if (event["cat"] != "program") by_op[event["args"]["operation"]] = event;
  }
  ASSERT_EQ(by_op.size(), program.ops.size());
  bool update = false;
  for (const auto& [id, event] : by_op) {
    const Op& op = program.ops[id];
    EXPECT_EQ(event["cat"], name_of(op.lane));
    EXPECT_NEAR(event["ts"].get<double>(), outcome.ops[id].start_us, 1e-6);
    EXPECT_NEAR(event["dur"].get<double>(), outcome.ops[id].end_us - outcome.ops[id].start_us, 1e-6);
    EXPECT_EQ(event["args"]["step"], 7);
    EXPECT_EQ(event["args"].value("bytes", std::uint64_t{0}), op.bytes);
    EXPECT_EQ(event["args"].value("flops", 0.0), op.flops);
    if (op.kind == OpKind::update && op.chunk == 5) {
      update = true;
      EXPECT_EQ(event["name"], "update " + request_.model.units[op.unit].name + " chunk 5");
    }
    if (op.kind == OpKind::forward && op.unit == 2) {
      EXPECT_EQ(event["name"], "forward h.1");
    }
  }
  EXPECT_TRUE(update);
}

// Spans of a track must not cross: a viewer would draw one within the other.
TEST_F(TraceTest, TransfersThatOverlapHaveTracksOfTheirOwn) {
  TraceWriter trace(path_, request_.model, plan_);
  StepOutcome outcome = made_outcome(plan_, ProgramKind::train);
  for (OpId id = 0; id < outcome.ops.size(); ++id) {
    if (plan_.program(ProgramKind::train).ops[id].lane == Lane::store) outcome.ops[id].end_us += 50;
  }
  trace.add(1, outcome);
  trace.write();
  const json written = read();
  std::map<int, std::vector<std::pair<double, double>>> spans;
  for (const json& event : of_phase(written, "X"))
    spans[event["tid"]].emplace_back(event["ts"], event["ts"].get<double>() + event["dur"].get<double>());
  for (auto& [track, of_track] : spans) {
    std::sort(of_track.begin(), of_track.end());
    for (std::size_t i = 1; i < of_track.size(); ++i)
      EXPECT_GE(of_track[i].first, of_track[i - 1].second - 1e-6) << track;
  }
  std::map<int, std::string> names;
  for (const json& event : of_phase(written, "M")) {
    if (event["name"] == "thread_name") names[event["tid"]] = event["args"]["name"];
  }
  std::set<std::string> distinct;
  for (const auto& [track, of_track] : spans) {
    ASSERT_TRUE(names.contains(track));
    distinct.insert(names[track]);
  }
  EXPECT_EQ(distinct.size(), spans.size());
  EXPECT_TRUE(distinct.contains("compute"));
  EXPECT_TRUE(distinct.contains("store"));
  EXPECT_TRUE(distinct.contains("store (2)"));
}

TEST_F(TraceTest, KeepsTheLastProgramsInTheirOrder) {
  TraceWriter trace(path_, request_.model, plan_, 2);
  for (std::uint64_t step = 1; step <= 4; ++step)
    trace.add(step, made_outcome(plan_, step == 4 ? ProgramKind::drain : ProgramKind::train));
  trace.write();
  std::vector<json> programs;
  for (const json& event : of_phase(read(), "X")) {
    if (event["cat"] == "program") programs.push_back(event);
  }
  ASSERT_EQ(programs.size(), 2u);
  EXPECT_EQ(programs[0]["name"], "train 3");
  EXPECT_EQ(programs[1]["name"], "drain 4");
  EXPECT_NEAR(programs[0]["ts"].get<double>(), 0, 1e-9);
}

TEST_F(TraceTest, WhatWasLeftOutIsNoEvent) {
  TraceWriter trace(path_, request_.model, plan_);
  trace.add(1, made_outcome(plan_, ProgramKind::train, false));
  trace.write();
  for (const json& event : of_phase(read(), "X"))
    EXPECT_EQ(event["name"].get<std::string>().find("update"), std::string::npos);
}

TEST_F(TraceTest, AnEmptyTraceIsWholeAndAWrongPathIsFoundAtOnce) {
  const TraceWriter trace(path_, request_.model, plan_);
  EXPECT_TRUE(of_phase(read(), "X").empty());
  try {
    const TraceWriter wrong(folder_.file("no/trace.json"), request_.model, plan_);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io_failed);
    EXPECT_THAT(error.what(), testing::HasSubstr("no/trace.json"));
  }
  EXPECT_THROW(require_writable_trace(folder_.file("no/trace.json")), Error);
}

TEST_F(TraceTest, LookingAtAPathChangesNothing) {
  require_writable_trace(path_);
  EXPECT_FALSE(std::filesystem::exists(path_));
  std::ofstream(path_) << "mine";
  require_writable_trace(path_);
  std::string text;
  std::ifstream(path_) >> text;
  EXPECT_EQ(text, "mine");
}

// Opened and closed several times: whoever reads a pipe would leave after the first.
TEST_F(TraceTest, APipeIsRefused) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THROW(require_writable_trace(path_), Error);
}

}  // namespace
}  // namespace terrace
