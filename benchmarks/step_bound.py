#!/usr/bin/env python3
"""A step against its bound (docs/decisions/0006-periodic-program.md): a disk-bound, a balanced and a compute-bound configuration.

Each run prints its own bound, from the times its operations took and what the disk gave in the same minute; here are the
median and the spread over the rounds, and the same bits are asked for with nothing fetched ahead (placement.prefetch = false).

usage: benchmarks/step_bound.py [--terrace PROGRAM] [--rounds N] [--steps N] [--only NAME]
Writes about 10 GB a round to the folder it runs in, and removes it.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

CONFIG = """
[model]
layers = 12
width = 768
heads = 12
vocabulary = {vocabulary}
context = {context}
tied_head = false
[data]
path = "{folder}/data"
[train]
steps = {steps}
micro_batch = {samples}
micro_batches = {contributions}
eval_batches = 0
[optimizer]
schedule = "constant"
clip_norm = {clip}
[tiers]
device = "4GiB"
host = "{host}"
nvme = [{{path = "{folder}/nvme", size = "10GiB"}}]
[placement]
parameters = "host"
gradients = "host"
optimizer_state = "nvme"
prefetch = {prefetch}
[store]
path = "{folder}/store"
[commit]
every_steps = 1
"""

# What bounds the step, and the shape that makes it so.
SHAPES = {
    "disk": dict(vocabulary=8192, context=128, samples=1, contributions=1, clip=1.0, host="1GiB"),
    "balanced": dict(vocabulary=50304, context=256, samples=4, contributions=1, clip=1.0, host="3GiB"),
    "balanced, updates in backward": dict(vocabulary=50304, context=256, samples=4, contributions=1, clip=0.0,
                                          host="3GiB"),
    "compute": dict(vocabulary=50304, context=256, samples=4, contributions=4, clip=1.0, host="2GiB"),
}


def run(program, folder, shape, steps, prefetch=True):
    """The end line of the run's metrics, and the losses."""
    for name in ("store", "nvme"):
        subprocess.run(["rm", "-rf", f"{folder}/{name}"], check=True)
    pathlib.Path(f"{folder}/nvme").mkdir()
    config = pathlib.Path(folder) / "config.toml"
    config.write_text(CONFIG.format(folder=folder, steps=steps, prefetch=str(prefetch).lower(), **shape))
    metrics = pathlib.Path(folder) / "metrics.jsonl"
    done = subprocess.run([program, "train", str(config), "--metrics", str(metrics)], text=True, capture_output=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return lines[-1], [line["loss"] for line in lines if line["event"] == "step"], done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--terrace", default=str(ROOT / "build/release/bin/terrace"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--only")
    parser.add_argument("--show", action="store_true", help="print each run's report")
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory(dir=".", prefix="step_bound.") as folder:
        text = pathlib.Path(folder) / "text"
        text.write_text((ROOT / "README.md").read_text() * 50)
        subprocess.run([options.terrace, "data", "prepare", str(text), "--out", f"{folder}/data"], check=True,
                       stdout=subprocess.DEVNULL)
        for name, shape in SHAPES.items():
            if options.only and options.only != name:
                continue
            ratios = []
            for _ in range(options.rounds):
                end, losses, shown = run(options.terrace, folder, shape, options.steps)
                ratios.append(end["step_over_bound"])
                if options.show:
                    print(shown, file=sys.stderr)
            slow, slow_losses, _ = run(options.terrace, folder, shape, options.steps, prefetch=False)
            if slow["state_hash"] != end["state_hash"] or slow_losses != losses:
                sys.exit(f"{name}: other bits without prefetch")
            results[name] = {
                "step_over_bound": {"median": statistics.median(ratios), "all": ratios},
                "without_prefetch": slow["step_over_bound"],
                "state_hash": end["state_hash"],
            }
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
