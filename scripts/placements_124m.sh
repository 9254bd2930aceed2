#!/usr/bin/env bash
# placements_124m.sh [DATA]: trains configs/gpt2-124m.toml for three steps at four placements and shows that losses, norms
# and the final hash are the same bits. DATA: a folder of prepared tokens (default: the quickstart's). Writes some 20 GB.
set -euo pipefail
cd "$(dirname "$0")/.."
terrace=build/release/bin/terrace
data=${1:-build/quickstart/data}
work=scratch/placements-124m
rm -rf "$work"

run() {
  local name=$1
  shift
  mkdir -p "$work/$name/nvme"
  "$terrace" train configs/gpt2-124m.toml --metrics "$work/$name.jsonl" \
    --set "data.path=\"$data\"" --set train.steps=3 --set train.micro_batches=2 --set train.eval_batches=0 \
    --set "store.path=\"$work/$name/store\"" --set "tiers.nvme=[{path=\"$work/$name/nvme\", size=\"8GiB\"}]" "$@" >"$work/$name.txt"
  rm -rf "${work:?}/$name"
}

run host --set 'tiers.host="8GiB"' --set 'placement.optimizer_state="host"' --set 'placement.parameters="host"' \
  --set 'placement.gradients="host"' --set 'placement.activations="host"' --set commit.every_steps=0
run states-on-disk --set 'placement.optimizer_state="nvme"'
run all-on-disk --set 'tiers.device="830MiB"' --set 'placement.optimizer_state="nvme"' --set 'placement.parameters="nvme"' \
  --set 'placement.gradients="nvme"' --set 'placement.activations="nvme"'
half='{host=0.5,nvme=0.5}'
run halves --set "placement.optimizer_state=$half" --set "placement.parameters=$half" --set "placement.gradients=$half" \
  --set "placement.activations=$half"

scripts/compare_bits.py "$work"
