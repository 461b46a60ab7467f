#!/usr/bin/env python3
"""make bench: measures prefill and decode of the embedded model on the CPU, at 8k and 32k tokens, with dense and sampled attention.

Each run is a `sleigh generate` on a text of that length, and the figures are those that `generate` prints. The methods take turns, so
that a change of the machine's speed affects all methods equally. The table has medians."""
import argparse
import os
import random
import statistics
import sys
import tempfile

sys.path += [os.path.join(os.path.dirname(os.path.abspath(__file__)), x) for x in ("..", "../train")]
import tiny_text
from sleigh_runs import model_line, number_before, run_generate


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sleigh", default="build/sleigh")
    p.add_argument("-m", "--model", default="models/tiny")
    p.add_argument("-t", "--threads", type=int, default=2)
    p.add_argument("-n", type=int, default=128, help="tokens decoded")
    p.add_argument("-r", type=int, default=3, help="repetitions")
    p.add_argument("--tokens", default="8192,32768")
    p.add_argument("--attn", default="dense,santa-prop:S=128,santa-sys:S=128,santa-is:S=128")
    a = p.parse_args()

    print(model_line(a.sleigh, a.model) + "\n")
    print("| tokens | method | prefill s | prefill GFLOP/s | decode tok/s | compared with dense | GB/s | KV bytes read | peak MiB |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as tmp:
        for tokens in map(int, a.tokens.split(",")):
            path = os.path.join(tmp, "prompt.txt")
            context, questions = tiny_text.needle_context(random.Random(1), tokens - a.n - 64, 16)
            with open(path, "w") as f:
                f.write(context + questions[0][0])
            rows = {}
            for i in range(a.r):
                for attn in a.attn.split(","):
                    print(f"{tokens} tokens, {attn}, run {i + 1} of {a.r}", file=sys.stderr)
                    _, s = run_generate(a.sleigh, a.model, path, attn, a.n, a.threads, ["--ignore-eos"])
                    rows.setdefault(attn, []).append((
                        number_before(s["prefill"], "ms") / 1e3, number_before(s["prefill"], "GFLOP/s"),
                        number_before(s["decode"], "tok/s"), number_before(s["bandwidth"], "GB/s"),
                        number_before(s["kv_bytes"], "%"), number_before(s["peak_rss"], "MiB")))
            median = {attn: [statistics.median(column) for column in zip(*runs)] for attn, runs in rows.items()}
            base = next(iter(median.values()))[2]
            for attn, (prefill, flops, speed, rate, kv, peak) in median.items():
                print(f"| {tokens} | {attn} | {prefill:.2f} | {flops:.0f} | {speed:.0f} | {speed / base:.2f} | {rate:.1f} | {kv:.1f}% | {peak:.0f} |")


if __name__ == "__main__":
    main()
