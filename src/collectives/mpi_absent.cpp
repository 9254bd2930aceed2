// In place of the MPI backend where MPI was not found when this was built.
#include <cstdio>
#include <cstdlib>

#include "src/base/fail.h"
#include "src/collectives/mpi_communicator.h"

namespace terrace {

std::unique_ptr<Communicator> make_mpi_world(const CommunicatorOptions&) {
  fail(ErrorCode::unsupported,
       "this build has no MPI communicator: install libopenmpi-dev and build again, or run the ranks as "
       "threads of one process");
}

void abort_mpi_job(std::string_view cause) noexcept {
  std::fprintf(stderr, "terrace: %.*s\n", static_cast<int>(cause.size()), cause.data());
  std::_Exit(1);
}

}  // namespace terrace
