// How the suites run on the ranks of a world, whatever carries them. A body knows its own rank only: what
// other ranks hold it computes for itself, so that ranks may be threads or processes.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "src/collectives/communicator.h"
#include "tests/support/error_of.h"

namespace terrace {

using RankBody = std::function<void(Communicator& world)>;

struct Backend {
  const char* name;
  int max_ranks;
  // Calls body on every rank of a new world and returns when all (of this process) have ended. A body that
  // throws aborts the world and is a failure of the test. Worlds of processes have as many ranks as there are
  // processes; others are left out, and mpi_ranks.cpp is started with every number.
  void (*run)(int ranks, const CommunicatorOptions& options, const RankBody& body);
};

std::vector<Backend> backends();

inline void PrintTo(const Backend& backend, std::ostream* out) {
  *out << backend.name;
}

// Ends the program, with words, when it lives longer than its limit.
class Watchdog {
 public:
  explicit Watchdog(std::string what);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class CommunicatorSuite : public testing::TestWithParam<Backend> {
 protected:
  // Worlds of more ranks than the backend has here are left out.
  void run_ranks(int ranks, const RankBody& body, const CommunicatorOptions& options = {}) {
    if (ranks > GetParam().max_ranks) return;
    const Watchdog watchdog("a world of " + std::to_string(ranks) + " ranks");
    GetParam().run(ranks, options, body);
  }
};

inline std::string backend_name(const testing::TestParamInfo<Backend>& info) {
  return info.param.name;
}

}  // namespace terrace
