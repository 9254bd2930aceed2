// The memory of the program while it runs, seen from outside.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tests/e2e/program.h"

namespace terrace::e2e {

struct Held {
  std::uint64_t resident_bytes = 0;  // anonymous and shared; locked pages are among them
  std::uint64_t locked_bytes = 0;
  std::size_t threads = 0;
  std::size_t descriptors = 0;
};

// Of another process; nothing when it has ended.
std::optional<Held> held_by(pid_t process);

struct Watched {
  Outcome outcome;
  Held most;
};

// Runs `terrace train` and looks at it every millisecond.
Watched watch(const TrainProgram& program, const std::string& folder, const Config& config,
              const std::function<void()>& prepare = {});

// Of a run of 500 steps: the most memory, and the fewest threads and descriptors, around step 100 and near
// the end (not at it: there it lets go).
struct Growth {
  Outcome outcome;
  Held early, late;
};
Growth watch_growth(const TrainProgram& program, const std::string& folder, const Config& config);

// The run did well, and held no more near its end than at its beginning.
void expect_nothing_grew(const Growth& growth);

// `peak` of a metrics file's last line.
nlohmann::json told_peak(const std::string& path);

}  // namespace terrace::e2e
