#!/usr/bin/env python3
"""Prints the table of README: the memory of models in bf16, and the largest context of one sequence that fits on GPUs of several sizes.

    scripts/measure/fit_table.py [--sleigh build/sleigh] [--check README.md]

The figures come from `sleigh inspect --load-format dummy` and the configs in models/. --check FILE: fails if FILE lacks the table."""
import argparse
import json
import subprocess
import sys

MODELS = {"llama-3.2-1b": "Llama-3.2-1B", "llama-3.2-3b": "Llama-3.2-3B", "qwen2.5-7b": "Qwen2.5-7B", "llama-3.1-8b": "Llama-3.1-8B",
          "qwen3-8b": "Qwen3-8B"}
LENGTHS = (8192, 32768, 131072)
GPUS = (12, 16, 24, 48, 80)  # GiB
REST = 1.5  # GiB of a GPU that the driver, kernels, buffers and activations take


def costs(sleigh, name):
    p = subprocess.run([sleigh, "inspect", "-m", f"models/{name}", "--load-format", "dummy", "--device", "cpu", "-o", "json"],
                       capture_output=True, text=True)
    if p.returncode:
        sys.exit(p.stderr)
    shown = json.loads(p.stdout)
    return shown["costs"]["weights_bytes"], shown["costs"]["kv_bytes_per_token"], shown["config"]["n_ctx"]


def row(sleigh, name):
    weights, per_token, limit = costs(sleigh, name)
    cells = [MODELS[name], f"{weights / 2**30:.2f} GiB"]
    for n in LENGTHS:
        cells.append(f"{(weights + n * per_token) / 2**30:.2f} GiB" if n <= limit else "-")
    for gpu in GPUS:
        fits = int((gpu - REST) * 2**30 - weights) // per_token // 1024
        cells.append(f"{min(fits, limit // 1024)}k" if fits >= 1 else "-")
    return cells


def table(sleigh):
    heads = ["bf16", "weights", *(f"and {n // 1024}k tokens" for n in LENGTHS), *(f"{gpu} GB" for gpu in GPUS)]
    lines = ["| " + " | ".join(cells) + " |\n" for cells in (heads, *(row(sleigh, name) for name in MODELS))]
    return "".join([lines[0], "|" + "---|" * len(heads) + "\n", *lines[1:]])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sleigh", default="build/sleigh")
    p.add_argument("--check")
    a = p.parse_args()
    text = table(a.sleigh)
    if not a.check:
        print(text, end="")
        return
    with open(a.check, encoding="utf-8") as f:
        if text not in "".join(line.lstrip() for line in f):
            sys.exit(f"{a.check} lacks this table:\n{text}")


if __name__ == "__main__":
    main()
