#!/usr/bin/env bash
# Installs what is missing, builds build/release and runs the tests. Arguments go to ctest, e.g. `-L unit`.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/install_deps.sh
scripts/build.sh release
log=build/release/ctest.log
# Tests sleep and wait for disks: one more at a time than there are cores.
if ctest --preset release -j "$(($(nproc) + 1))" "$@" >"$log" 2>&1; then
  status=0
else
  status=$?
  grep -vE '^ *[0-9]+/[0-9]+ Test .* Passed|^ *Start ' "$log" || true  # what failed, with its output
fi
sed -n '/tests passed/,$p' "$log"
echo "the whole log: $log"
exit "$status"
