#include "tests/e2e/watched_program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>

#include "src/base/units.h"

namespace terrace::e2e {

namespace fs = std::filesystem;

std::optional<Held> held_by(pid_t process) {
  const std::string folder = "/proc/" + std::to_string(process);
  std::ifstream status(folder + "/status");
  Held held;
  bool any = false;
  std::string name;
  std::uint64_t number = 0;
  for (std::string line; std::getline(status, line);) {
    std::istringstream words(line);
    if (!(words >> name >> number)) continue;
    if (name == "RssAnon:" || name == "RssShmem:") held.resident_bytes += number * kKiB;
    if (name == "VmLck:") held.locked_bytes = number * kKiB;
    if (name == "Threads:") held.threads = number;
    any = any || name == "RssAnon:";
  }
  std::error_code gone;
  for (auto entry = fs::directory_iterator(folder + "/fd", gone); !gone && entry != fs::directory_iterator();
       entry.increment(gone)) {
    ++held.descriptors;
  }
  if (!any || gone) return std::nullopt;
  return held;
}

Watched watch(const TrainProgram& program, const std::string& folder, const Config& config,
              const std::function<void()>& prepare) {
  Program running(folder, program.arguments(config, false), prepare);
  Watched watched;
  while (running.running()) {
    if (const auto now = held_by(running.id())) {
      watched.most.resident_bytes = std::max(watched.most.resident_bytes, now->resident_bytes);
      watched.most.locked_bytes = std::max(watched.most.locked_bytes, now->locked_bytes);
      watched.most.threads = std::max(watched.most.threads, now->threads);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  watched.outcome = running.wait();
  return watched;
}

Growth watch_growth(const TrainProgram& program, const std::string& folder, const Config& config) {
  Growth growth;
  for (Held* window : {&growth.early, &growth.late})
    window->threads = window->descriptors = std::numeric_limits<std::size_t>::max();
  Program running(folder, program.arguments(config, false));
  while (running.running()) {
    const std::size_t step = steps_told(program.metrics_path());
    const auto now = held_by(running.id());
    if (now && ((step >= 80 && step < 140) || (step >= 430 && step < 490))) {
      Held& window = step >= 430 ? growth.late : growth.early;
      window.resident_bytes = std::max(window.resident_bytes, now->resident_bytes);
      window.threads = std::min(window.threads, now->threads);
      window.descriptors = std::min(window.descriptors, now->descriptors);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  growth.outcome = running.wait();
  return growth;
}

void expect_nothing_grew(const Growth& growth) {
  const Held &early = growth.early, &late = growth.late;
  ASSERT_EQ(growth.outcome.code, 0) << growth.outcome;
  ASSERT_GT(early.resident_bytes, 0u);
  ASSERT_GT(late.resident_bytes, 0u);
  EXPECT_LT(late.resident_bytes, early.resident_bytes + kMiB)
      << "2.6 KiB a step would show: " << early.resident_bytes << " grew to " << late.resident_bytes;
  EXPECT_EQ(late.descriptors, early.descriptors);
  EXPECT_EQ(late.threads, early.threads);
}

nlohmann::json told_peak(const std::string& path) {
  nlohmann::json peak;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto event = nlohmann::json::parse(line, nullptr, false);
    if (!event.is_discarded() && event["event"] == "end") peak = event["peak"];
  }
  return peak;
}

}  // namespace terrace::e2e
