// The part of mpi_communicator.h that needs no MPI.
#include <algorithm>
#include <cstdlib>

#include "src/base/units.h"
#include "src/collectives/mpi_communicator.h"
#include "src/collectives/mpi_fold_tile.h"

namespace terrace {

bool launched_by_mpi() {
  // Open MPI and whatever starts by PMIx; MPICH's PMI. A Slurm job step of one task is not a job of MPI.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  const char* const tasks = std::getenv("SLURM_STEP_NUM_TASKS");
  return tasks != nullptr && std::getenv("SLURM_PROCID") != nullptr && std::atoi(tasks) > 1;
}

std::uint64_t mpi_fold_tile_bytes(int ranks) {
  const auto buffers = 2 * static_cast<std::uint64_t>(std::max(ranks - 1, 1));
  return std::max(kFoldBufferBytes / buffers / kFoldTileUnit, std::uint64_t{1}) * kFoldTileUnit;
}

std::uint64_t mpi_fold_buffer_bytes(int ranks) {
  return 2 * static_cast<std::uint64_t>(ranks - 1) * mpi_fold_tile_bytes(ranks);
}

}  // namespace terrace
