#!/usr/bin/env python3
"""What ranks cost. Two questions, each answered side by side in one run:

ranks  4 thread ranks against 1 rank with the same 4 contributions on the same cores: the ratio of the median steps.
link   stage 3 on 2 ranks over an emulated link: a step against its busiest lane. That is the link (the bytes that a rank
       sends over the stated rate) or compute (measured on one rank alone with the same contributions: two ranks share the
       cores, so a round of both takes as long). Also with nothing fetched ahead.

usage: benchmarks/ranks.py [--terrace PROGRAM] [--rounds N] [--steps N] [--gbps G ...]
The losses and the state of every run must be equal, or it stops.
"""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

CONFIG = """
[model]
layers = 6
width = 384
heads = 6
vocabulary = 8192
context = 128
[data]
path = "{folder}/data"
[train]
steps = {steps}
micro_batch = 4
micro_batches = {contributions}
eval_batches = 0
[optimizer]
schedule = "constant"
[tiers]
device = "2GiB"
host = "8GiB"
[placement]
gradients = "host"
optimizer_state = "host"
"""

WARM_UP = 3  # steps left out


def run(program, folder, options, contributions, steps, **settings):
    """Median step in seconds, the bits, and busy seconds of the compute lane."""
    config = pathlib.Path(folder) / "config.toml"
    config.write_text(CONFIG.format(folder=folder, steps=steps + WARM_UP, contributions=contributions))
    metrics = pathlib.Path(folder) / "metrics.jsonl"
    command = [program, "train", str(config), "--metrics", str(metrics), *options]
    for key, value in settings.items():
        command += ["--set", f"ranks.{key}={value}" if key == "link_gbps" else f"placement.{key}={str(value).lower()}"]
    done = subprocess.run(command, text=True, capture_output=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps_run = [line for line in lines if line["event"] == "step"][WARM_UP:]
    tokens = 4 * contributions * 128
    bits = (lines[-1]["state_hash"], tuple(line["loss"] for line in steps_run))
    return (statistics.median(tokens / line["tokens_per_s"] for line in steps_run), bits,
            statistics.median(line["lanes"]["compute"] for line in steps_run))


def sent_bytes(program, folder):
    """Bytes that a rank of stage 3 sends a step, by the plan."""
    shown = subprocess.run([program, "plan", f"{folder}/config.toml", "--ranks", "2", "--stage", "3", "--no-measure"],
                           text=True, capture_output=True, check=True).stdout
    found = re.search(r"^  collective +([\d.]+) MiB", shown, re.M)
    return float(found.group(1)) * 2**20


def spread(values):
    return {"median": round(statistics.median(values), 3), "all": [round(v, 3) for v in values]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--terrace", default=str(ROOT / "build/release/bin/terrace"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--gbps", type=float, nargs="*", default=[0.1, 0.2, 0.4])
    options = parser.parse_args()
    results = {"ranks": {}, "link": {}}
    with tempfile.TemporaryDirectory(dir=".", prefix="ranks.") as folder:
        text = pathlib.Path(folder) / "text"
        text.write_text((ROOT / "README.md").read_text() * 50)
        subprocess.run([options.terrace, "data", "prepare", str(text), "--out", f"{folder}/data"], check=True,
                       stdout=subprocess.DEVNULL)
        ratios = {stage: [] for stage in ("0", "1", "2", "3")}
        for _ in range(options.rounds):
            for stage, found in ratios.items():
                one, bits, _ = run(options.terrace, folder, [], 4, options.steps)
                four, same, _ = run(options.terrace, folder, ["--ranks", "4", "--stage", stage], 4, options.steps)
                if bits != same:
                    sys.exit(f"4 ranks, stage {stage}: other bits")
                found.append(four / one)
        results["ranks"] = {f"stage {stage}, 4 ranks over 1": spread(found) for stage, found in ratios.items()}
        for gbps in options.gbps:
            with_prefetch, without, lanes = [], [], []
            for _ in range(options.rounds):
                _, bits, compute = run(options.terrace, folder, [], 2, options.steps)
                link = sent_bytes(options.terrace, folder) / (gbps * 1e9)
                busiest = max(link, compute)
                lanes.append("link" if link > compute else "compute")
                for ahead, found in ((True, with_prefetch), (False, without)):
                    step, same, _ = run(options.terrace, folder, ["--ranks", "2", "--stage", "3"], 2, options.steps,
                                        link_gbps=gbps, prefetch=ahead)
                    if bits != same:
                        sys.exit(f"2 ranks over {gbps} GB/s: other bits")
                    found.append(step / busiest)
            results["link"][f"{gbps} GB/s"] = {"busiest lane": lanes, "step over it": spread(with_prefetch),
                                               "nothing fetched ahead": spread(without)}
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
