#!/usr/bin/env python3
"""Times decode steps with K and V in host memory, for a model of Llama-3.1-8B's shape with random weights and random rows.

    python3 scripts/measure/host_memory.py --hits 0.6 --host-memory 200G -o build/host-memory.md

The first table has a step with everything on the GPU at the first depth, then steps with rows on the host at all depths: every row
fetched (cold), and with the share --hits of the rows in the cache of hot rows (replayed). `sleigh generate --kv-cache host` prints this
share for a real text (host_rows). The second table and the picture show the time of a step against density, as Figure 5 of the vAttention
paper does: the share of the rows that a query head reads. The output of the commands goes to --work; what exists there does not run again."""
import argparse
import json
import os
import subprocess
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from sleigh_runs import draw

METHOD = "santa-is:S=256"
DENSITY = ("quest:tokens=512", "quest:tokens=2048", "quest:tokens=8192", "vattention:predictor=quest:epsilon=0.3:base=0.001:top=0.001",
           "vattention:predictor=quest:epsilon=0.3:base=0.01:top=0.01", "santa-is:S=64", "santa-is:S=256", "santa-is:S=1024")


def tokens(word):
    return int(word[:-1]) * 1024 if word.endswith("k") else int(word)


def measure(args, name, methods, depths, place, hits):
    """Runs one bench, and returns the command and the rows."""
    cmd = ["bench", "decode", "-m", args.model, "--load-format", "dummy", "--device", args.device, "--fill", "random", "-b", "1", "-n",
           str(args.steps), "-d", depths, "--attn", ",".join(methods), "-o", "json"]
    if place == "host":
        cmd += ["--kv-cache", "host"] + (["--host-memory", args.host_memory] if args.host_memory else [])
    if hits is not None:
        cmd += ["--hot-hits", f"{hits:g}"]
    if args.rope_scale > 1:
        cmd += ["--rope-scaling", "linear", "--rope-scale", f"{args.rope_scale:g}"]
    path = os.path.join(args.work, name + ".json")
    if not os.path.exists(path):
        print(name, file=sys.stderr)
        run = subprocess.run([args.sleigh, *cmd], stdout=subprocess.PIPE, text=True)
        if run.returncode:
            sys.exit(f"sleigh {' '.join(cmd)}: exit {run.returncode}")
        with open(path, "w") as f:
            f.write(run.stdout)
    with open(path) as f:
        return "build/sleigh " + " ".join(cmd), json.load(f)


def cell(x, digits=2):
    return "-" if x is None else f"{x:.{digits}f}"


def count(n):
    return f"{n // 1024}k" if n % 1024 == 0 else str(n)


def heads_of(args):
    """Query heads of all layers."""
    with open(os.path.join(args.model, "config.json")) as f:
        config = json.load(f)
    return config["num_hidden_layers"] * config["num_attention_heads"]


def step_table(runs):
    print("| tokens | K and V | hits % | step, ms | against the GPU | attention, ms | rows over the bus | MB over the bus |\n|---|---|---|---|---|---|---|---|")
    first = runs[0][2][0]["step_ms"]
    for _, name, rows in runs:
        for r in rows:
            print(f"| {count(r['depth'])} | {name} | {cell(r['hot_hits'] and 100 * r['hot_hits'], 1)} | {cell(r['step_ms'])} | "
                  f"{cell(r['step_ms'] / first)} | {cell(r['attention_ms'])} | {r['bus_rows']:.0f} | {cell(r['bus_bytes'] / 1e6, 1)} |")
    print()


def density_of(row, heads):
    """The share of the rows that a query head reads over the bus or from the cache of hot rows."""
    read = row["bus_rows"] / (1 - (row["hot_hits"] or 0)) if row["bus_rows"] else 0
    return read / heads / row["depth"]


def density_table(args, rows):
    heads, curves = heads_of(args), {}
    print("| method | density, % | step, ms | attention, ms | rows over the bus |\n|---|---|---|---|---|")
    for r in rows:
        density = density_of(r, heads)
        print(f"| {r['attn']} | {100 * density:.3f} | {cell(r['step_ms'])} | {cell(r['attention_ms'])} | {r['bus_rows']:.0f} |")
        curves.setdefault(r["attn"].split(":")[0], []).append((max(100 * density, 1e-4), r["step_ms"]))
    print()
    stem = os.path.splitext(args.output)[0]
    draw(args.sleigh, stem + ".svg", f"a decode step with K and V in host memory, {count(rows[0]['depth'])} tokens, {rows[0]['device']}",
         [("density", "rows that a query head reads, %", "time of a step, ms", "log-x log-y lines", {k: sorted(v) for k, v in curves.items()})])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sleigh", default="build/sleigh")
    p.add_argument("-m", "--model", default="models/llama-3.1-8b")
    p.add_argument("--device", default="cuda", help="cpu: only for a test of this script, with K and V where they are")
    p.add_argument("--depths", default="128k,512k,768k")
    p.add_argument("--density-depth", default="128k", help="none: only the first table")
    p.add_argument("--hits", type=float, default=0.5, help="share of hot rows in the replayed steps")
    p.add_argument("--host-memory", default=None)
    p.add_argument("--rope-scale", type=float, default=16, help="factor of the context, for depths above the model's limit; 1: none")
    p.add_argument("--steps", type=int, default=32)
    p.add_argument("--work", default="build/host-memory")
    p.add_argument("-o", "--output", default="build/host-memory.md")
    a = p.parse_args()
    os.makedirs(a.work, exist_ok=True)
    place, hits = ("host", a.hits) if a.device != "cpu" else ("gpu", None)
    first = a.depths.split(",")[0]
    runs = [(*measure(a, "gpu", [METHOD], first, "gpu", None), "on the GPU"),
            (*measure(a, "cold", [METHOD], a.depths, place, None if hits is None else 0), "on the host, cold"),
            (*measure(a, "replayed", [METHOD], a.depths, place, hits), "on the host, replayed")]
    if a.density_depth != "none":
        command, density = measure(a, "density", DENSITY, a.density_depth, place, None)
    row = runs[0][1][0]
    with open(a.output, "w") as out:
        sys.stdout = out
        print(f"# Decode steps with K and V in host memory\n\n**A model of {a.model} with random weights and random rows** on {row['device']}, "
              f"commit {row['commit']}, {METHOD}. ms are medians of {a.steps} steps.\n")
        for c, _, _ in runs:
            print(f"    {c}")
        print()
        step_table([(c, name, rows) for c, rows, name in runs])
        if a.density_depth != "none":
            print(f"Time against density:\n\n    {command}\n")
            density_table(a, density)
        sys.stdout = sys.__stdout__


if __name__ == "__main__":
    main()
