// The built program, run as a user runs it, in a process of its own.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "terrace/config.h"
#include "tests/e2e/tiny_run.h"

namespace terrace::e2e {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;  // mlock does nothing there; memory is another allocator's
#else
inline constexpr bool kSanitized = false;
#endif

struct Outcome {
  int code = -1;   // exit status; -1 when a signal ended it
  int signal = 0;  // that signal
  std::string out;
  std::string err;
};
std::ostream& operator<<(std::ostream& out, const Outcome& outcome);

class Program {
 public:
  // Starts `terrace ARGUMENTS` in `folder`. `prepare` runs in the new process before the program does:
  // limits, user, filters. A program that has not ended after two minutes is ended by SIGALRM, so nothing
  // here waits for ever.
  Program(const std::string& folder, const std::vector<std::string>& arguments,
          const std::function<void()>& prepare = {});
  ~Program();  // kills what still runs
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t id() const { return id_; }
  void send(int signal) const;
  bool running();
  Outcome wait();

 private:
  std::string out_, err_;
  pid_t id_ = -1;
  bool ended_ = false;
  int status_ = 0;
};

// Starts it and waits for its end.
Outcome run_program(const std::string& folder, const std::vector<std::string>& arguments,
                    const std::function<void()>& prepare = {});

// Writes the configuration to `folder`/config.toml and gives that path.
std::string write_config(const std::string& folder, const Config& config);

// `terrace train` of a configuration, in a folder that also gets its metrics.
class TrainProgram {
 public:
  explicit TrainProgram(const std::string& folder) : folder_(folder) {}

  std::string metrics_path() const { return folder_ + "/metrics.jsonl"; }
  std::vector<std::string> arguments(const Config& config, bool resume) const;
  Outcome run(const Config& config, bool resume, const std::function<void()>& prepare = {}) const {
    return run_program(folder_, arguments(config, resume), prepare);
  }

 private:
  std::string folder_;
};

// 35,000 parameters and 16 steps, everything in memory; the same with a store, states half in host and half
// on disk.
Config small_in_memory(const Workspace& workspace);
Config small_on_disk(Workspace& workspace);

// A whole metrics file. Fails the test for a line that is no JSON, for steps that are not 1, 2, 3, ..., for a
// file that does not end with the end line.
Record record_of_metrics(const std::string& path);

// Steps that a metrics file tells of so far; a torn line does not count.
std::size_t steps_told(const std::string& path);

// Polls `condition` every 200 us, for a minute at most; false when it never held.
bool wait_until(const std::function<bool()>& condition);

std::string read_file(const std::string& path);

// The number of "KEY ... = NUMBER bytes" in a message; nothing where it has none.
std::optional<std::uint64_t> bytes_of(const std::string& message, const std::string& key);

// For `prepare`. They abort the new process when the system refuses.
void limit(int resource, std::uint64_t value);
void refuse_io_uring();
void drop_page_lock_right();  // root may lock more than its limit

}  // namespace terrace::e2e
