#!/usr/bin/env python3
"""Whole training steps side by side with PyTorch: tokens/s of both, alternated in one run, as JSON.

The GPT-2 small shape: 12 blocks, width 768, vocabulary 50304, untied, sequence 256, micro-batch 4, bf16. Terrace runs as
`terrace train` with everything in host memory (and, with --disk, again with its optimizer states on disk); PyTorch runs
the same model with bf16 weights, its fused AdamW and clipping, everything in memory.

usage: benchmarks/step_vs_torch.py [--terrace PROGRAM] [--rounds N] [--steps N] [--disk] [--no-torch]
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from torch_env import enter_venv  # noqa: E402

BLOCKS, WIDTH, HEADS, VOCABULARY, CONTEXT, SAMPLES = 12, 768, 12, 50304, 256, 4

CONFIG = """
[model]
layers = {blocks}
width = {width}
heads = {heads}
vocabulary = {vocabulary}
context = {context}
tied_head = false
[data]
path = "{folder}/data"
[train]
steps = {steps}
micro_batch = {samples}
eval_batches = 1
[optimizer]
schedule = "constant"
[tiers]
device = "4GiB"
host = "8GiB"
{tiers}
"""

ON_DISK = """nvme = [{{path = "{folder}/nvme", size = "8GiB"}}]
[placement]
parameters = "host"
gradients = "host"
optimizer_state = "nvme"
[store]
path = "{folder}/store"
"""


def terrace_rates(program, folder, steps, on_disk):
    """tokens/s of each step but the first three: the first touches all memory for the first time, the next two write
    the store's two extents for the first time."""
    for name in ("store", "nvme"):
        subprocess.run(["rm", "-rf", f"{folder}/{name}"], check=True)
    pathlib.Path(f"{folder}/nvme").mkdir()
    config = pathlib.Path(folder) / "config.toml"
    config.write_text(CONFIG.format(blocks=BLOCKS, width=WIDTH, heads=HEADS, vocabulary=VOCABULARY, context=CONTEXT,
                                    samples=SAMPLES, steps=steps, folder=folder,
                                    tiers=ON_DISK.format(folder=folder) if on_disk else ""))
    metrics = pathlib.Path(folder) / "metrics.jsonl"
    subprocess.run([program, "train", str(config), "--metrics", str(metrics)], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [line["tokens_per_s"] for line in lines if line["event"] == "step"][3:]


class TorchRun:
    def __init__(self):
        import torch
        from torch import nn
        import torch.nn.functional as F

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
                self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
                self.fc, self.out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

            def forward(self, x):
                n, t, _ = x.shape
                q, k, v = (p.view(n, t, HEADS, -1).transpose(1, 2) for p in self.qkv(self.ln_1(x)).split(WIDTH, 2))
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                x = x + self.proj(y.transpose(1, 2).reshape(n, t, WIDTH))
                return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))

        class Gpt(nn.Module):
            def __init__(self):
                super().__init__()
                self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
                self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
                self.ln_f, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

            def forward(self, tokens, targets):
                x = self.wte(tokens) + self.wpe.weight
                for block in self.blocks:
                    x = block(x)
                return F.cross_entropy(self.head(self.ln_f(x)).flatten(0, 1), targets.flatten())

        self.torch = torch
        torch.manual_seed(1)
        self.model = Gpt().to(torch.bfloat16)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.step()

    def step(self):
        torch = self.torch
        tokens = torch.randint(256, (SAMPLES, CONTEXT + 1))
        start = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        self.model(tokens[:, :-1], tokens[:, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return SAMPLES * CONTEXT / (time.perf_counter() - start)


def summary(rates):
    median = statistics.median(rates)
    return {"tokens_per_s": round(median, 1), "mad": round(statistics.median(abs(r - median) for r in rates), 1),
            "steps": len(rates)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--terrace", default=str(ROOT / "build/release/bin/terrace"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--disk", action="store_true")
    parser.add_argument("--no-torch", action="store_true", help="only our own speed, in memory and on disk")
    options = parser.parse_args()
    torch_run = None
    if not options.no_torch:
        enter_venv()
        torch_run = TorchRun()
    (ROOT / "scratch").mkdir(exist_ok=True)
    memory, disk, torch_rates = [], [], []
    with tempfile.TemporaryDirectory(dir=ROOT / "scratch") as folder:
        text = bytes((i * 7919 + i // 251) % 256 for i in range(400_000))
        pathlib.Path(folder, "text").write_bytes(text)
        subprocess.run([options.terrace, "data", "prepare", f"{folder}/text", "--out", f"{folder}/data"], check=True,
                       stdout=subprocess.DEVNULL)
        for _ in range(options.rounds):
            if torch_run:
                torch_rates += [torch_run.step() for _ in range(options.steps)]
            memory += terrace_rates(options.terrace, folder, options.steps + 3, False)
            if options.disk:
                disk += terrace_rates(options.terrace, folder, options.steps + 3, True)
    result = {"shape": "GPT-2 small, untied, 256 x 4, bf16", "terrace": summary(memory)}
    if torch_rates:
        result["torch"] = summary(torch_rates)
        result["terrace_over_torch"] = round(result["terrace"]["tokens_per_s"] / result["torch"]["tokens_per_s"], 3)
    if disk:
        result["terrace_states_on_disk"] = summary(disk)
        result["disk_over_memory"] = round(summary(disk)["tokens_per_s"] / summary(memory)["tokens_per_s"], 3)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
