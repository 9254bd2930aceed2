#!/usr/bin/env bash
# ranks_124m.sh [DATA]: trains configs/gpt2-124m.toml for two steps of four contributions on one, two and four ranks, under
# several stages, and shows that losses, norms and the final hash are the same bits. DATA: a folder of prepared tokens
# (default: the quickstart's). Up to 9 GiB of memory.
set -euo pipefail
cd "$(dirname "$0")/.."
terrace=build/release/bin/terrace
data=${1:-build/quickstart/data}
work=scratch/ranks-124m
rm -rf "$work"

run() {
  local name=$1
  shift
  mkdir -p "$work/$name/nvme"
  "$terrace" train configs/gpt2-124m.toml --metrics "$work/$name.jsonl" \
    --set "data.path=\"$data\"" --set train.steps=2 --set train.micro_batches=4 --set train.eval_batches=0 \
    --set ranks.time_limit_s=600 --set 'tiers.host="10GiB"' --set "store.path=\"$work/$name/store\"" \
    --set "tiers.nvme=[{path=\"$work/$name/nvme\", size=\"12GiB\"}]" "$@" >"$work/$name.txt"
  rm -rf "${work:?}/$name"
}

memory=(--set 'placement.optimizer_state="host"' --set commit.every_steps=0)
run 1-rank "${memory[@]}"
run 2-ranks-stage-3 --ranks 2 --stage 3 "${memory[@]}"
run 4-ranks-stage-3-states-on-disk --ranks 4 --stage 3
run 4-ranks-stage-2 --ranks 4 --stage 2 "${memory[@]}"
run 4-ranks-hybrid --ranks 4 --stage hybrid_shard "${memory[@]}"
run 2-ranks-stage-0 --ranks 2 --stage 0 "${memory[@]}"

scripts/compare_bits.py "$work"
