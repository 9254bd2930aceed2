// Ranks that are processes of one MPI job, one rank a process.
#pragma once

#include <memory>
#include <string_view>

#include "src/collectives/communicator.h"

namespace terrace {

// Whether mpirun, srun or another launcher started this process as one of a job (read from the environment;
// MPI is not touched). False where it was started by hand.
bool launched_by_mpi();

// This rank's handle of a world of all processes of the job. Every process calls it, in one order with the
// other worlds that it makes; returns without waiting for the others, except for the first one, which
// initialises MPI (a process that does not come within the time limit ends the job, in words).
// Throws unsupported where this build has no MPI or MPI does not allow threads; invalid_argument for a time
// limit outside 1 ms to 1 day or a negative link rate. Other options than another rank's end the world.
//
// Behaves as LocalCommunicator, to the bit and to the word, with these differences:
//   - Who does not answer at all (a process that is stopped) is named after the time limit and a grace of
//     kMpiGrace. Where that happens in the middle of a transfer, nothing can be undone: the job ends, with
//     the cause on stderr. So does whatever else goes wrong in there (no memory, an error of MPI).
//   - A process that dies is reported by mpirun, which then ends the job.
// A world that has ended by a failure may be followed by a new one.
//
// Cost of a collective beside its data: one message to rank 0's process and one back, and the sleeps of
// waiting: 10 us to 1 ms. Memory: reduce_scatter and all_reduce receive through a buffer a handle, allocated
// by the first of them, of at most mpi_fold_buffer_bytes(size). Waiting threads sleep; the process has one
// thread more, which makes all calls of MPI and also sleeps while nothing moves.
//
// At exit the process waits (within the time limit) for the others and finalises MPI, unless the world it
// made last has failed: then it exits at once, and mpirun ends the job if its status is not 0. Where the
// program has initialised MPI itself, it also finalises it; after that no communicator works.
std::unique_ptr<Communicator> make_mpi_world(const CommunicatorOptions& options = {});

inline constexpr std::chrono::milliseconds kMpiGrace{1500};

std::uint64_t mpi_fold_buffer_bytes(int ranks);

// Prints `cause` with the rank to stderr and ends every process of the job, with status 1. For the end of a
// program whose rank has failed: to leave main by an exception or exit() is as good under mpirun, but not
// under every launcher. Without MPI: ends this process.
[[noreturn]] void abort_mpi_job(std::string_view cause) noexcept;

}  // namespace terrace
