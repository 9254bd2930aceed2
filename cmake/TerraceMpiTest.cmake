# terrace_mpi_test(NAME SOURCES ... RANKS 1 2 ... [LIBS ...] [LABEL ...]): one test program with a main of its
# own, and a ctest entry for each number of processes. A failure of any process is one of the entry.
set(TERRACE_MPI_ENVIRONMENT
  # Containers run as root; this machine has fewer cores than the tests have ranks.
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
  OMPI_MCA_hwloc_base_binding_policy=none)
if(TERRACE_SANITIZE STREQUAL "address")
  list(APPEND TERRACE_MPI_ENVIRONMENT ASAN_OPTIONS=detect_leaks=0)  # Open MPI keeps what it has until the exit
endif()
if(TERRACE_SANITIZE STREQUAL "thread")
  # Open MPI takes its locks of TCP in two orders while it starts, in one thread.
  list(APPEND TERRACE_MPI_ENVIRONMENT TSAN_OPTIONS=detect_deadlocks=0)
endif()

function(terrace_mpi_test name)
  cmake_parse_arguments(ARG "" "LABEL" "SOURCES;LIBS;RANKS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE terrace_compile ${ARG_LIBS} GTest::gmock GTest::gtest)
  foreach(ranks IN LISTS ARG_RANKS)
    set(test ${name}.${ranks}_ranks)
    add_test(NAME ${test} COMMAND ${MPIEXEC_EXECUTABLE} -n ${ranks} $<TARGET_FILE:${name}>)
    set_tests_properties(${test} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT 300 PROCESSORS 2
      ENVIRONMENT "${TERRACE_MPI_ENVIRONMENT}")
  endforeach()
endfunction()
