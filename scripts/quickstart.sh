#!/usr/bin/env bash
# quickstart.sh [FILE]: installs what is missing, builds, prepares a text (FILE, or the King James Bible of Debian's
# bible-kjv), trains configs/quickstart.toml from the start and prints a sample.
# TERRACE_QUICKSTART_STEPS=N trains N steps instead of the configuration's.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
text=${1:+$(realpath "$1")}
cd "$root"

scripts/install_deps.sh
scripts/build.sh release terrace
terrace=build/release/bin/terrace
config=configs/quickstart.toml
work=build/quickstart

rm -rf "$work"
mkdir -p "$work/nvme"
if [ -z "$text" ]; then
  text=$work/bible.txt
  bible -f Gen1:1-Rev22:21 | sed -E 's/^[^ ]+ //' >"$text"  # "Ge1:1 In the beginning" -> "In the beginning"
fi
"$terrace" data prepare "$text" --out "$work/data"

options=()
if [ -n "${TERRACE_QUICKSTART_STEPS:-}" ]; then
  options+=(--set "train.steps=$TERRACE_QUICKSTART_STEPS")
fi
"$terrace" train "$config" "${options[@]}" --metrics "$work/metrics.jsonl"

echo
"$terrace" sample "$config" "${options[@]}" --prompt "In the beginning" --tokens 300 --temperature 0.8 --top-k 40
