#include "tests/e2e/watched_program.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
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
