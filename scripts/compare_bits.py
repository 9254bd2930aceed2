#!/usr/bin/env python3
"""compare_bits.py FOLDER: reads the metrics (*.jsonl) of several runs and says whether losses, norms and final states are the
same bits; exit code 1 where they are not."""
import json, pathlib, sys
results = {}
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.jsonl")):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    steps = [line for line in lines if line["event"] == "step"]
    end = lines[-1]
    results[path.stem] = ([s["loss"] for s in steps], [s["grad_norm"] for s in steps], end["state_hash"])
    peak = end["peak"]
    print(f"{path.stem:32} {end['state_hash']}  resident {peak['resident_bytes'] / 2**30:.2f} GiB  "
          f"device {peak['device_bytes'] / 2**30:.2f}  host {peak['host_bytes'] / 2**30:.2f}  "
          f"nvme {peak['nvme_bytes'] / 2**30:.2f}  {steps[-1]['tokens_per_s']:.0f} tokens/s")
losses, norms, _ = next(iter(results.values()))
print("losses", *losses)
print("norms ", *norms)
same = len({json.dumps(result) for result in results.values()}) == 1
print("the same bits in all runs" if same else "DIFFERENT")
sys.exit(0 if same else 1)
