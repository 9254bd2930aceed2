// The parts of the MPI communicator that need no job: who launched us, and a build without MPI.
#include <gtest/gtest.h>

#include <cstdlib>

#include "src/collectives/mpi_communicator.h"
#include "tests/support/error_of.h"

namespace terrace {
namespace {

constexpr const char* kNames[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "SLURM_STEP_NUM_TASKS",
                                  "SLURM_PROCID"};

bool launched_with(std::initializer_list<std::pair<const char*, const char*>> variables) {
  for (const char* name : kNames) ::unsetenv(name);
  for (const auto& [name, value] : variables) ::setenv(name, value, 1);
  const bool launched = launched_by_mpi();
  for (const char* name : kNames) ::unsetenv(name);
  return launched;
}

TEST(MpiLaunch, IsReadFromTheEnvironment) {
  EXPECT_FALSE(launched_with({}));
  EXPECT_TRUE(launched_with({{"OMPI_COMM_WORLD_SIZE", "1"}}));
  EXPECT_TRUE(launched_with({{"PMIX_RANK", "0"}}));
  EXPECT_TRUE(launched_with({{"PMI_RANK", "3"}}));
  EXPECT_TRUE(launched_with({{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}}));
  EXPECT_FALSE(launched_with({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}}));  // srun of one task
  EXPECT_FALSE(launched_with({{"SLURM_PROCID", "0"}}));                                 // a batch script
}

// This program is linked with src/collectives/mpi_absent.cpp, whatever else the build has.
TEST(MpiLaunch, AnAbsentBackendSaysSoInWords) {
  EXPECT_EQ(error_of([] { make_mpi_world(); }),
            "unsupported: this build has no MPI communicator: install libopenmpi-dev and build again, or run "
            "the ranks as threads of one process");
}

TEST(MpiLaunchDeathTest, WithoutMpiTheEndIsThatOfTheProcess) {
  EXPECT_EXIT(abort_mpi_job("the disk is on fire"), testing::ExitedWithCode(1),
              "terrace: the disk is on fire\n");
}

}  // namespace
}  // namespace terrace
