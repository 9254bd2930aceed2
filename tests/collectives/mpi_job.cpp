// A job of three ranks that goes wrong as it is told: mpi_job_test starts it under mpirun.
#include <mpi.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "src/collectives/mpi_communicator.h"
#include "terrace/error.h"

namespace terrace {
namespace {

constexpr CommunicatorOptions kOptions{.time_limit = std::chrono::milliseconds(2000)};

[[noreturn]] void hang() {
  while (true) ::pause();
}

void gather(Communicator& world, std::uint64_t step) {
  const std::vector<std::byte> mine(100);
  std::vector<std::byte> out(300);
  world.all_gather({.what = "h.3", .unit = 4, .step = step}, WireType::u8, equal_parts(3, 100), mine, out);
}

void stop_myself(int) {
  std::raise(SIGSTOP);
}

// Rank 1 stops while it folds, with transfers to it on their way.
void stop_in_a_fold(Communicator& world) {
  constexpr std::uint64_t kNumel = 8'000'000;  // 32 MB: many tiles
  const std::vector<std::byte> gradient(3 * kNumel * 4);
  void* const memory =
      ::mmap(nullptr, kNumel * 4, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (world.rank() == 1) {
    std::signal(SIGSEGV, stop_myself);
    ::mprotect(memory, kNumel * 4, PROT_NONE);
  }
  world.reduce_scatter({.what = "h.3", .unit = 4, .step = 2}, DType::f32, equal_parts(3, kNumel), gradient,
                       std::span(static_cast<float*>(memory), kNumel), {});
}

int work(const std::string& how) {
  if (how == "never starts" && std::getenv("OMPI_COMM_WORLD_RANK") == std::string("1")) hang();
  const auto world = make_mpi_world(kOptions);
  const bool culprit = world->rank() == (how == "stops rank 0" ? 0 : 1);
  for (std::uint64_t step = 0; step < 5; ++step) {
    if (culprit && step == 2) {
      if (how == "throws" || how == "aborts") throw std::runtime_error("the disk is on fire");
      if (how == "hangs") hang();
      if (how == "is killed") std::raise(SIGKILL);
      if (how == "stops" || how == "stops rank 0") std::raise(SIGSTOP);
      if (how == "leaves") return 0;
    }
    if (how == "stops in a fold" && step == 2) stop_in_a_fold(*world);
    gather(*world, step);
  }
  if (how == "does not end" && culprit) hang();
  if (world->rank() == 0) std::puts("all is done");
  return 0;
}

int run(const std::string& how) {
  std::printf("pid %d\n", static_cast<int>(::getpid()));
  std::fflush(stdout);
  try {
    return work(how);
  } catch (const std::exception& error) {
    if (how == "aborts") abort_mpi_job(error.what());
    std::fprintf(stderr, "this rank ends: %s\n", error.what());
    return 1;
  }
}

// The program has MPI of its own.
int run_with_own_mpi(const std::string& how) {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, how == "own MPI" ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &provided);
  const int status = run(how);
  MPI_Finalize();
  try {
    make_mpi_world();
  } catch (const Error& error) {
    std::fprintf(stderr, "after MPI: %s\n", error.what());
  }
  return status;
}

}  // namespace
}  // namespace terrace

int main(int, char** argv) {
  const std::string how = argv[1];
  return how.starts_with("own MPI") ? terrace::run_with_own_mpi(how) : terrace::run(how);
}
