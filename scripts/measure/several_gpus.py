#!/usr/bin/env python3
"""Prints the hashes of the logits after decode steps of 1, 2 and 4 processes that share a model, beside each other (results/several-gpus.md).

All processes decode over the same random rows of K and V (`bench --fill random`). The exit status is 1 if the hashes of a row differ."""
import argparse
import json
import subprocess
import sys


def hashes(a, weights, n):
    """Of each method; n: processes."""
    command = [a.sleigh, "bench", "-m", a.model, "--device", a.device, "-tp", str(n), "-d", a.depth, "--fill", "random", "-p", "0", "-n", "8",
               "-b", str(a.batch), "-r", "1", "--attn", a.attn, "--exact-below", "off", "-o", "json"]
    command += ["--load-format", "dummy"] if a.dummy else []
    command += ["--weights", weights] if weights != "bf16" else []
    print(" ".join(command), file=sys.stderr)
    return {row["attn"]: row["logits"] for row in json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sleigh", default="build/sleigh")
    p.add_argument("-m", "--model", default="models/llama-3.2-1b")
    p.add_argument("--dummy", action="store_true", help="random weights (--load-format dummy)")
    p.add_argument("--device", default="cuda")
    p.add_argument("-n", "--processes", default="1,2,4")
    p.add_argument("-d", "--depth", default="4k")
    p.add_argument("-b", "--batch", type=int, default=4)
    p.add_argument("--weights", default="bf16,int4,int8,fp8")
    p.add_argument("--attn", default="dense,santa-prop:S=128,santa-is:S=256")
    a = p.parse_args()

    sizes = [int(n) for n in a.processes.split(",")]
    differ = 0
    print("| weights | method | " + " | ".join(f"{n} process{'es' * (n > 1)}" for n in sizes) + " | equal |")
    print("|---" * (len(sizes) + 3) + "|")
    for weights in a.weights.split(","):
        found = [hashes(a, weights, n) for n in sizes]
        for method in found[0]:
            row = [h[method] for h in found]
            differ |= len(set(row)) > 1
            print(f"| {weights} | {method} | " + " | ".join(f"`{h}`" for h in row) + f" | {'no' if len(set(row)) > 1 else 'yes'} |", flush=True)
    sys.exit(differ)


if __name__ == "__main__":
    main()
