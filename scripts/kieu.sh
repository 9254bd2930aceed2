#!/usr/bin/env bash
# kieu.sh [KEY=VALUE...]: builds, prepares configs/kieu.txt as characters, trains configs/kieu.toml from the start (with
# the keys given) and prints what the model goes on with.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/install_deps.sh
scripts/build.sh release terrace
terrace=build/release/bin/terrace
config=configs/kieu.toml
work=build/kieu

options=()
for setting in "$@"; do options+=(--set "$setting"); done

rm -rf "$work"
"$terrace" data prepare configs/kieu.txt --tokenizer chars --validation 0 --out "$work/data"
"$terrace" train "$config" "${options[@]}" --metrics "$work/metrics.jsonl"
echo
"$terrace" sample "$config" "${options[@]}" --prompt "trăm năm" --tokens 122 --temperature 0
