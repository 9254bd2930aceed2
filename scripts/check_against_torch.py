#!/usr/bin/env python3
"""Compares the model's gradients and AdamW with PyTorch's.

The program torch_dump (tests/model/torch_dump.cpp) runs small models and 1,000 AdamW updates and writes what went in and
what came out; PyTorch repeats them from the same inputs. Prints a table; exits 1 when anything is out of tolerance.

usage: scripts/check_against_torch.py [--build FOLDER]     (default build/release)

PyTorch and numpy are installed into scratch/venv when they are missing (some 5 GB).
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from torch_env import ROOT, enter_venv


def built_dump(build):
    folder = ROOT / build
    if not (folder / "CMakeCache.txt").exists():
        subprocess.run(["cmake", "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"], check=True)
    subprocess.run(["cmake", "--build", str(folder), "--target", "torch_dump"], check=True)
    return folder / "bin" / "torch_dump"


def load(folder, entry):
    import numpy
    return numpy.fromfile(folder / entry["file"], dtype=entry["dtype"]).reshape(entry["shape"])


def distance(got, want):
    """Euclidean distance over the wanted tensor's length."""
    length = want.norm().item()
    return (got - want).norm().item() / (length if length > 0 else 1.0)


def run_torch(folder, model, dtype):
    """Loss sum and gradients (as float64) of the model in PyTorch, computed in `dtype`."""
    import torch
    import torch.nn.functional as F
    p = {}
    for tensor in model["tensors"]:
        value = torch.from_numpy(load(folder, tensor["value"])).to(dtype)
        p[tensor["name"]] = value.requires_grad_()
    tokens = torch.from_numpy(load(folder, model["tokens"])).long()
    targets = torch.from_numpy(load(folder, model["targets"])).long()
    samples, context = tokens.shape
    width = p["wte.weight"].shape[1]
    heads = model["heads"]

    def norm(x, name):
        return F.layer_norm(x, (width,), p[name + ".weight"], p[name + ".bias"], 1e-5)

    def linear(x, name):
        return F.linear(x, p[name + ".weight"], p[name + ".bias"])

    x = p["wte.weight"][tokens] + p["wpe.weight"][torch.arange(context)]
    for layer in range(model["layers"]):
        h = f"h.{layer}."
        q, k, v = (part.view(samples, context, heads, width // heads).transpose(1, 2)
                   for part in linear(norm(x, h + "ln_1"), h + "attn.qkv").split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(y.transpose(1, 2).reshape(samples, context, width), h + "attn.proj")
        x = x + linear(F.gelu(linear(norm(x, h + "ln_2"), h + "mlp.fc"), approximate="tanh"), h + "mlp.proj")
    head = p["wte.weight"] if model["tied"] else p["lm_head.weight"]
    logits = F.linear(norm(x, "ln_f"), head).flatten(0, 1)
    loss = F.cross_entropy(logits.float() if dtype == torch.bfloat16 else logits, targets.flatten(),
                           ignore_index=-1, reduction="sum")
    (loss / model["divisor"]).backward()
    return loss.item(), {name: value.grad.double() for name, value in p.items()}


def check_model(folder, model):
    """Against PyTorch in float64 (the truth). fp32 must be near it; bf16 as near as PyTorch's own bf16 is."""
    import torch
    narrow = model["dtype"] == "bf16"
    true_loss, true_grads = run_torch(folder, model, torch.float64)
    torch_loss, torch_grads = run_torch(folder, model, torch.bfloat16 if narrow else torch.float32)
    loss_error = abs(model["loss_sum"] - true_loss) / true_loss
    torch_loss_error = abs(torch_loss - true_loss) / true_loss
    print(f"\n{model['name']}: loss {model['loss_sum'] / model['divisor']:.7f}, float64 "
          f"{true_loss / model['divisor']:.7f}, PyTorch {model['dtype']} {torch_loss / model['divisor']:.7f}")
    print(f"  {'gradient of':26} {'ours-f64':>10} {'torch-f64':>10} {'ours-torch':>10} {'allowed':>10}")
    passed = report("(loss)", loss_error, torch_loss_error, abs(model["loss_sum"] - torch_loss) / true_loss,
                    2e-3 if narrow else 1e-6)
    for tensor in model["tensors"]:
        name = tensor["name"]
        ours = torch.from_numpy(load(folder, tensor["grad"])).double()
        torch_error = distance(torch_grads[name], true_grads[name])
        allowed = 1.25 * torch_error + 5e-3 if narrow else 1e-5
        passed &= report(name, distance(ours, true_grads[name]), torch_error, distance(ours, torch_grads[name]), allowed)
    return passed


def report(name, ours, theirs, between, allowed):
    passed = ours <= allowed  # false for NaN
    print(f"  {name:26} {ours:10.2e} {theirs:10.2e} {between:10.2e} {allowed:10.2e}{'' if passed else '   MISMATCH'}")
    return passed


def check_adamw(folder, adamw):
    import torch
    gradients = torch.from_numpy(load(folder, adamw["gradients"]))
    trajectory = torch.from_numpy(load(folder, adamw["trajectory"])).double()
    rates = load(folder, adamw["rates"])
    split = adamw["decayed"]
    passed = True
    runs = {}
    for dtype in (torch.float64, torch.float32):
        start = torch.from_numpy(load(folder, adamw["start"])).to(dtype)
        decayed, plain = start[:split].clone().requires_grad_(), start[split:].clone().requires_grad_()
        optimizer = torch.optim.AdamW([{"params": [decayed]}, {"params": [plain], "weight_decay": 0.0}],
                                      betas=(adamw["beta1"], adamw["beta2"]), eps=adamw["eps"],
                                      weight_decay=adamw["weight_decay"], foreach=False)
        path = []
        for step, rate in enumerate(rates):
            for group in optimizer.param_groups:
                group["lr"] = float(rate)
            decayed.grad, plain.grad = gradients[step, :split].to(dtype), gradients[step, split:].to(dtype)
            optimizer.step()
            path.append(torch.cat([decayed.detach(), plain.detach()]).double())
        state = [torch.cat([optimizer.state[decayed][key], optimizer.state[plain][key]]).double()
                 for key in ("exp_avg", "exp_avg_sq")]
        runs[dtype] = (torch.stack(path), *state)
    true_path, true_avg, true_sq = runs[torch.float64]
    torch_path, torch_avg, torch_sq = runs[torch.float32]
    print(f"\nAdamW, {len(rates)} steps, {gradients.shape[1]} parameters, rates {rates.min():.2e} to {rates.max():.2e}")
    print(f"  {'':26} {'ours-f64':>10} {'torch-f64':>10} {'ours-torch':>10} {'allowed':>10}")
    worst = lambda a, b: (a - b).abs().max().item()
    passed &= report("any weight at any step", worst(trajectory, true_path), worst(torch_path, true_path),
                     worst(trajectory, torch_path), 1e-5)
    passed &= report("last weights", distance(trajectory[-1], true_path[-1]), distance(torch_path[-1], true_path[-1]),
                     distance(trajectory[-1], torch_path[-1]), 1e-6)
    for key, true_value, torch_value in (("exp_avg", true_avg, torch_avg), ("exp_avg_sq", true_sq, torch_sq)):
        ours = torch.from_numpy(load(folder, adamw[key])).double()
        passed &= report(key, distance(ours, true_value), distance(torch_value, true_value), distance(ours, torch_value),
                         1e-6)
    return passed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release", help="build folder, made when it is missing")
    arguments = parser.parse_args()
    enter_venv()
    import torch
    torch.set_num_threads(1)
    program = built_dump(arguments.build)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run([str(program), name], check=True)
        index = json.loads((folder / "index.json").read_text())
        print(f"PyTorch {torch.__version__}; distances are relative, over a whole tensor")
        passed = all([check_model(folder, model) for model in index["models"]] + [check_adamw(folder, index["adamw"])])
    print("\nall within tolerance" if passed else "\nMISMATCH")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
