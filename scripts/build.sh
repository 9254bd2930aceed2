#!/usr/bin/env bash
# build.sh PRESET [TARGET...]: configures and builds build/PRESET (release, asan or tsan); with ccache where it is there.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=$1
shift
if command -v ccache >/dev/null; then
  export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
fi
cmake --preset "$preset" >"/tmp/terrace-configure.$$" || { cat "/tmp/terrace-configure.$$" >&2; exit 1; }
rm -f "/tmp/terrace-configure.$$"
cmake --build --preset "$preset" ${1:+--target "$@"}
