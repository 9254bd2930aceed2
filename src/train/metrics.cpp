#include "src/train/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "src/base/fail.h"

namespace terrace {
namespace {

using Json = nlohmann::ordered_json;

int open_to_append(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) fail(ErrorCode::io_failed, "{}: cannot open to write metrics: {}", path, std::strerror(errno));
  return fd;
}

}  // namespace

KeptMetrics kept_up_to_step(const std::string& text, std::uint64_t committed_step, const std::string& path) {
  KeptMetrics kept;
  std::size_t& begin = kept.bytes;
  for (std::size_t number = 1; begin < text.size(); ++number) {
    const std::size_t newline = text.find('\n', begin);
    if (newline == std::string::npos) return kept;  // torn
    const auto line = Json::parse(text.begin() + static_cast<std::ptrdiff_t>(begin),
                                  text.begin() + static_cast<std::ptrdiff_t>(newline), nullptr, false);
    const bool is_event = line.is_object() && line.contains("event") && line["event"].is_string();
    const std::string event = is_event ? line["event"].get<std::string>() : "";
    const bool has_step = is_event && line.contains("step") && line["step"].is_number_unsigned();
    if (event != "end" && !((event == "step" || event == "eval") && has_step)) {
      fail(ErrorCode::invalid_argument,
           "{}:{}: no line of metrics; the file to resume must be one of an earlier run", path, number);
    }
    if (event == "end") return kept;
    const auto step = line["step"].get<std::uint64_t>();
    if (step > committed_step || (event == "eval" && step == committed_step)) return kept;
    if (event == "step") kept.last_step = step;
    begin = newline + 1;
  }
  return kept;
}

MetricsWriter::MetricsWriter(const std::string& path, std::optional<std::uint64_t> committed_step,
                             const std::string& committed_line)
    : path_(path) {
  KeptMetrics kept;
  std::error_code unknown;
  if (committed_step && std::filesystem::is_regular_file(path, unknown)) {  // a pipe has nothing to be cut
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    kept = kept_up_to_step(text, *committed_step, path);
  }
  fd_ = open_to_append(path);
  // Only a regular file can be cut; a pipe or terminal takes lines as they come.
  if (::ftruncate(fd_, static_cast<off_t>(kept.bytes)) != 0 && errno != EINVAL) {
    const int error = errno;
    ::close(fd_);
    fail(ErrorCode::io_failed, "{}: cannot cut it to {} bytes: {}", path, kept.bytes, std::strerror(error));
  }
  if (committed_step && kept.last_step + 1 == *committed_step && !committed_line.empty())
    write_line(committed_line);
}

MetricsWriter::~MetricsWriter() {
  ::close(fd_);
}

void MetricsWriter::write_line(std::string line) {
  line += '\n';
  std::size_t done = 0;
  while (done < line.size()) {
    const ssize_t written = ::write(fd_, line.data() + done, line.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      fail(ErrorCode::io_failed, "{}: cannot append a line of metrics: wanted {} bytes, got {}", path_,
           line.size() - done, written < 0 ? std::strerror(errno) : "0");
    }
    done += static_cast<std::size_t>(written);
  }
}

void require_writable_metrics(const std::string& path) {
  const bool there = ::access(path.c_str(), F_OK) == 0;
  ::close(open_to_append(path));
  if (!there) ::unlink(path.c_str());
}

std::string to_line(const StepMetrics& metrics) {
  Json line{{"event", "step"},      {"step", metrics.step},
            {"loss", metrics.loss}, {"grad_norm", metrics.grad_norm},
            {"lr", metrics.lr},     {"tokens_per_s", metrics.tokens_per_s}};
  if (metrics.dropped) line["dropped"] = true;
  if (!metrics.rank_loss.empty()) line["rank_loss"] = metrics.rank_loss;
  line["lanes"] = metrics.lanes;
  return line.dump();
}

void MetricsWriter::step(const StepMetrics& metrics) {
  write_line(to_line(metrics));
}

void MetricsWriter::eval(std::uint64_t step, double loss) {
  write_line(Json{{"event", "eval"}, {"step", step}, {"loss", loss}}.dump());
}

void MetricsWriter::end(const EndMetrics& metrics) {
  Json line{
      {"event", "end"}, {"state_hash", metrics.state_hash}, {"steps", metrics.steps}, {"peak", metrics.peak}};
  if (metrics.step_over_bound) line["step_over_bound"] = *metrics.step_over_bound;
  write_line(line.dump());
}

}  // namespace terrace
