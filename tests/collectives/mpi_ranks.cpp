// The ranks of the suites as processes of an MPI job: each runs all tests, in step with the others, and takes
// part in the worlds of as many ranks as the job has. A failure on one rank is one on all.
#include <cstdio>
#include <exception>
#include <memory>
#include <string>

#include "src/collectives/mpi_communicator.h"
#include "tests/collectives/ranks.h"

namespace terrace {
namespace {

std::unique_ptr<Communicator> all;  // made first, of no test
int worlds = 0;

void run_process(int ranks, const CommunicatorOptions& options, const RankBody& body) {
  if (ranks != all->size()) return;
  ++worlds;
  {
    const auto world = make_mpi_world(options);
    try {
      body(*world);
    } catch (const std::exception& error) {
      world->abort(error.what());
      ADD_FAILURE() << "rank " << world->rank() << ": " << error.what();
    }
  }
  const std::uint64_t failed = testing::Test::HasFailure() ? 1 : 0;
  std::uint64_t somebody_failed = 0;
  all->all_reduce({.what = "the tests"}, ReduceOp::max, std::span(&failed, 1),
                  std::span(&somebody_failed, 1));
  if (failed < somebody_failed) ADD_FAILURE() << "another rank failed; see there";
}

// Of ranks other than 0: only what failed, and where.
class FailurePrinter : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override {
    test_ = std::string(test.test_suite_name()) + "." + test.name();
  }
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::printf("[rank %d] %s, %s:%d: %s\n", all->rank(), test_.c_str(),
                result.file_name() != nullptr ? result.file_name() : "", result.line_number(),
                result.summary());
    std::fflush(stdout);
  }
  std::string test_;
};

int run_all_tests() {
  all = make_mpi_world({.time_limit = std::chrono::seconds(120)});
  if (all->rank() != 0) {
    testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailurePrinter);
  }
  const int status = RUN_ALL_TESTS();
  if (all->rank() == 0) std::printf("mpi: %d worlds of %d ranks\n", worlds, all->size());
  const bool ran = worlds > 0;
  all.reset();
  // The last world has not failed: MPI may be finalised.
  make_mpi_world()->barrier({.what = "the end of the tests"});
  return ran ? status : 1;
}

}  // namespace

std::vector<Backend> backends() {
  return {{"mpi", 64, run_process}};
}

}  // namespace terrace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return terrace::run_all_tests();
}
