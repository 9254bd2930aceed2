#!/usr/bin/env bash
# kieu.sh [KEY=VALUE...]: builds, prepares configs/kieu.txt as characters, trains configs/kieu.toml on two ranks under every
# stage (with the keys given), compares what came out, and prints what the model goes on with. docs/kieu.md explains it.
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
for stage in 0 1 2 3 hybrid_shard; do
  rm -rf "$work/store"
  log="$work/stage-$stage.txt"
  "$terrace" train "$config" --stage "$stage" --compare-ranks "${options[@]}" --metrics "$work/stage-$stage.jsonl" \
    >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
  printf '\nstage %s: %s\n' "$stage" "$(grep '^state ' "$log")"
  sed -n '/ ranks; epoch /,$p' "$log"
done
states=$(grep -h '^state ' "$work"/stage-*.txt | sort -u | wc -l)
[ "$states" -eq 1 ] || { echo "error: $states different states" >&2; exit 1; }
printf '\nthe same state under every stage\n\n'
"$terrace" sample "$config" "${options[@]}" --prompt "trăm năm" --tokens 122 --temperature 0
