#include "src/train/trace.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "src/base/fail.h"

namespace terrace {
namespace {

constexpr int kProcess = 1;
constexpr int kProgramTrack = 1;                      // the whole program
constexpr int track_of(Lane lane, std::size_t row) {  // rows of one lane stand together
  return 1000 * (static_cast<int>(lane) + 1) + static_cast<int>(row);
}

std::ofstream open_to_write(const std::string& path) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (!file) fail(ErrorCode::io_failed, "{}: cannot open to write a trace: {}", path, std::strerror(errno));
  return file;
}

// Events one after another, without holding them all.
class Events {
 public:
  explicit Events(std::ofstream& file) : file_(file) {
    file_ << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  }
  void add(const nlohmann::ordered_json& event) {
    if (any_) file_ << ",\n";
    any_ = true;
    file_ << event.dump();
  }
  void span(const std::string& name, const std::string& category, int track, double start_us, double end_us,
            nlohmann::ordered_json details) {
    add({{"name", name},
         {"cat", category},
         {"ph", "X"},
         {"ts", start_us},
         {"dur", end_us - start_us},
         {"pid", kProcess},
         {"tid", track},
         {"args", std::move(details)}});
  }
  void name_track(int track, const std::string& name) {
    add({{"name", "thread_name"},
         {"ph", "M"},
         {"pid", kProcess},
         {"tid", track},
         {"args", {{"name", name}}}});
    add({{"name", "thread_sort_index"},
         {"ph", "M"},
         {"pid", kProcess},
         {"tid", track},
         {"args", {{"sort_index", track}}}});
  }
  void end() { file_ << "\n]}\n"; }

 private:
  std::ofstream& file_;
  bool any_ = false;
};

// Of each operation, the row of its lane in which nothing else is at that time.
std::vector<std::size_t> rows_of(const std::vector<OpTime>& ops, const StepProgram& program) {
  std::vector<OpId> order;
  for (OpId id = 0; id < ops.size(); ++id) {
    if (ops[id].end_us > 0) order.push_back(id);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](OpId a, OpId b) { return ops[a].start_us < ops[b].start_us; });
  std::vector<std::size_t> rows(ops.size(), 0);
  std::array<std::vector<double>, kLanes> free_at{};
  for (const OpId id : order) {
    std::vector<double>& lane = free_at[static_cast<std::size_t>(program.ops[id].lane)];
    const auto row =
        std::find_if(lane.begin(), lane.end(), [&](double at) { return at <= ops[id].start_us; });
    rows[id] = static_cast<std::size_t>(row - lane.begin());
    if (row == lane.end()) {
      lane.push_back(ops[id].end_us);
    } else {
      *row = ops[id].end_us;
    }
  }
  return rows;
}

}  // namespace

std::string op_name(const ModelShape& model, const Op& op) {
  std::string text(name_of(op.kind));
  if (op.unit != kNone) text += " " + model.units.at(op.unit).name;
  if (op.chunk != kNone) text += fmt::format(" chunk {}", op.chunk);
  return text;
}

void require_writable_trace(const std::string& path) {
  const bool there = std::filesystem::exists(path);
  if (there && !std::filesystem::is_regular_file(path)) {
    fail(ErrorCode::invalid_argument, "{}: a trace is written anew several times; wanted a plain file", path);
  }
  const std::ofstream file(path, std::ios::app);
  if (!file) fail(ErrorCode::io_failed, "{}: cannot open to write a trace: {}", path, std::strerror(errno));
  if (!there) std::filesystem::remove(path);
}

TraceWriter::TraceWriter(const std::string& path, const ModelShape& model, const Plan& plan, std::size_t kept)
    : path_(path),
      model_(model),
      plan_(plan),
      kept_most_(std::max<std::size_t>(1, kept)),
      begin_(std::chrono::steady_clock::now()) {
  write();
}

void TraceWriter::add(std::uint64_t step, const StepOutcome& outcome) {
  const std::chrono::duration<double, std::micro> now = std::chrono::steady_clock::now() - begin_;
  kept_.push_back({step, outcome.kind, now.count() - outcome.wall_us, outcome.ops});
  if (kept_.size() > kept_most_) kept_.pop_front();
}

void TraceWriter::write() const {
  std::ofstream file = open_to_write(path_);
  Events events(file);
  events.add({{"name", "process_name"}, {"ph", "M"}, {"pid", kProcess}, {"args", {{"name", "terrace"}}}});
  events.name_track(kProgramTrack, "program");
  std::map<int, std::string> tracks;
  for (const Kept& kept : kept_) {
    const StepProgram& program = plan_.program(kept.kind);
    const double begin_us = kept.start_us - kept_.front().start_us;
    const std::vector<std::size_t> rows = rows_of(kept.ops, program);
    double end_us = 0;
    for (OpId id = 0; id < kept.ops.size(); ++id) {
      const OpTime& time = kept.ops[id];
      if (time.end_us <= 0) continue;
      end_us = std::max(end_us, time.end_us);
      const Op& op = program.ops[id];
      const std::string lane(name_of(op.lane));
      const int track = track_of(op.lane, rows[id]);
      tracks[track] = rows[id] == 0 ? lane : fmt::format("{} ({})", lane, rows[id] + 1);
      nlohmann::ordered_json details{{"operation", id}, {"step", kept.step}};
      if (op.micro_batch != kNone) details["contribution"] = op.micro_batch;
      if (op.bytes > 0) details["bytes"] = op.bytes;
      if (op.flops > 0) details["flops"] = op.flops;
      events.span(op_name(model_, op), lane, track, begin_us + time.start_us, begin_us + time.end_us,
                  details);
    }
    events.span(fmt::format("{} {}", name_of(kept.kind), kept.step), "program", kProgramTrack, begin_us,
                begin_us + end_us, {{"step", kept.step}});
  }
  for (const auto& [track, name] : tracks) events.name_track(track, name);
  events.end();
  file.flush();
  if (!file) fail(ErrorCode::io_failed, "{}: cannot write the trace: {}", path_, std::strerror(errno));
}

}  // namespace terrace
