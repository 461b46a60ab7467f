#!/usr/bin/env python3
"""Draws the picture of README: the time to decode one token of one sequence against the context, with peers.

    python3 scripts/measure/decode_picture.py --measured results/h200 --steps results/h200-steps.dat -o docs/decode.svg

The left panel is the attention of one layer, the right panel is a whole step. The folder --measured holds
    attention-context.json   `sleigh bench attn -b 1 -d '4k-128k*2' --phase decode -o json`
    peers-context.jsonl      `python3 scripts/measure/bench_peers.py context`
    peers-steps.jsonl        steps of other engines: {"engine", "batch", "n", "ms"}
and --steps is the data file of scripts/measure/bench_steps.py. The dotted lines are the time to read the bytes of dense attention at the rate of a
kernel that only reads: K and V of one layer, or the weights and K and V of all layers."""
import sys
import argparse
import json
import os

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from sleigh_runs import draw

METHODS = ("dense", "santa-prop:S=128", "santa-pps:S=128", "santa-is:S=256")
PEERS = {"cudnn_us": "cuDNN 9", "fa3_us": "FlashAttention-3", "fa2_us": "FlashAttention-2"}


def lines(path):
    with open(path) as f:
        return [json.loads(line) for line in f]


def named(method):
    return method + " (Sleigh)" if method == "dense" else method


def tokens(size):
    """'1 x 32k' -> 32768"""
    return int(size.removeprefix("1 x ").removesuffix("k")) * 1024


def kernels(folder):
    with open(os.path.join(folder, "attention-context.json")) as f:
        ours = json.load(f)
    curves = {named(m): [(tokens(r["size"]), r["us"]) for r in ours["rows"] if r["attn"] == m] for m in METHODS}
    peers = lines(os.path.join(folder, "peers-context.jsonl"))
    for key, name in PEERS.items():
        curves[name] = [(r["n"], r[key]) for r in peers if r["batch"] == 1]
    curves["bytes of K and V"] = [(tokens(r["size"]), r["floor_us"]) for r in ours["rows"] if r["attn"] == "dense"]
    return curves, ours


def steps(folder, path, ours, model):
    curves, name = {}, None
    with open(path) as f:
        for line in f:
            if line.startswith("# panel:") and curves:  # the first panel has the times
                break
            if line.startswith("# curve: "):
                name = line.removeprefix("# curve: ").strip()
            elif line.strip() and line[0] != "#" and name.endswith(", batch 1"):
                x, y = line.split()[:2]
                curves.setdefault(named(name.removesuffix(", batch 1")), []).append((float(x), float(y)))
    for r in lines(os.path.join(folder, "peers-steps.jsonl")):
        curves.setdefault(r["engine"], []).append((r["n"], r["ms"]))
    with open(os.path.join(model, "config.json")) as f:
        c = json.load(f)
    hidden, rows = c["hidden_size"], c["num_attention_heads"] * c["head_dim"]
    kv = c["num_key_value_heads"] * c["head_dim"]
    layer = hidden * (2 * rows + 2 * kv) + 3 * hidden * c["intermediate_size"]
    weights = 2 * (c["num_hidden_layers"] * layer + c["vocab_size"] * hidden)  # bf16
    row = 2 * 2 * kv * c["num_hidden_layers"]  # K and V of one token, in bytes
    curves["bytes of weights, K and V"] = [(x, (weights + x * row) / ours["read_gb_s"] * 1e-6) for x, _ in curves[named("dense")]]
    return curves


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sleigh", default="build/sleigh")
    p.add_argument("--measured", default="results/h200")
    p.add_argument("--steps", default="results/h200-steps.dat")
    p.add_argument("--model", default="models/llama-3.1-8b", help="folder with the config.json of the measured shape")
    p.add_argument("-o", "--output", default="docs/decode.svg")
    a = p.parse_args()
    attention, ours = kernels(a.measured)
    axes = "log-x log-y lines ticks"
    draw(a.sleigh, a.output, f"decode of one sequence, shapes of Llama-3.1-8B, {ours['device']}",
         [("attention of one layer", "tokens of context", "time of one layer, us", axes, attention),
          ("whole step", "tokens of context", "time of a step, ms", axes, steps(a.measured, a.steps, ours, a.model))])


if __name__ == "__main__":
    main()
