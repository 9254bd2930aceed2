include(GoogleTest)

# terrace_library(NAME SOURCES ... [LIBS ...]): one static library a folder. Those of the product are installed.
function(terrace_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC $<BUILD_INTERFACE:terrace_compile> ${ARG_LIBS})
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE folder)
  if(folder MATCHES "^(src|io|kernels)(/|$)" AND NOT folder STREQUAL "src/cli")
    set_property(GLOBAL APPEND PROPERTY TERRACE_LIBRARIES ${name})
  endif()
endfunction()

# terrace_test(NAME SOURCES ... [LIBS ...] [LABEL unit|conformance|e2e|fault|gpu|slow]): one test program;
# each of its cases is a ctest entry.
function(terrace_test name)
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT" "SOURCES;LIBS" ${ARGN})
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE terrace_compile ${ARG_LIBS} GTest::gmock GTest::gtest_main)
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT})
endfunction()

# terrace_benchmark(NAME SOURCES ... [LIBS ...])
function(terrace_benchmark name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE terrace_compile ${ARG_LIBS} benchmark::benchmark)
endfunction()
