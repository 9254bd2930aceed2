// The ranks of the suites as threads of this process.
#include <exception>
#include <memory>
#include <thread>
#include <utility>

#include "src/collectives/local_communicator.h"
#include "tests/collectives/ranks.h"

namespace terrace {
namespace {

void run_threads(int ranks, const CommunicatorOptions& options, const RankBody& body) {
  std::vector<std::unique_ptr<Communicator>> world = make_local_world(ranks, options);
  std::vector<std::thread> threads;
  for (auto& handle : world) {
    threads.emplace_back([&body, mine = std::move(handle)] {
      try {
        body(*mine);
      } catch (const std::exception& error) {
        mine->abort(error.what());
        ADD_FAILURE() << "rank " << mine->rank() << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

std::vector<Backend> backends() {
  return {{"local", 64, run_threads}};
}

}  // namespace terrace
