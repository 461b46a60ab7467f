#!/usr/bin/env python3
"""Times decode steps of a model of Llama-3.1-8B's shape with random weights on a GPU, from 4k to 127k tokens, with the batches that
fit into memory, for dense attention, santa-prop and santa-is.

    python3 scripts/measure/bench_steps.py --sleigh build/sleigh -o results/h100-steps.md

`sleigh bench --copy` fills a batch: it prefills one sequence, and the others get copies of its rows, so that a step reads every sequence's
keys and values from memory. The output of the commands goes to --work. If the output of a batch exists there, the batch does not run again.
The script draws the picture next to the report; bars go from 10% to 90% of the steps."""
import argparse
import json
import os
import subprocess
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from sleigh_runs import draw, head_lines

BARS = ("step_ms", "step_ms_10", "step_ms_90")  # median, and the ends of its bar
METHODS = ("dense", "santa-prop:S=128", "santa-is:S=256")
# Batch and longest context that fit into 80 GB with 15 GiB of weights and the 4-bit keys. 127k is the model's limit minus the steps.
SIZES = "1:127k 2:127k 4:96k 8:48k 16:24k"


def tokens(word):
    return int(word[:-1]) * 1024 if word.endswith("k") else int(word)


def depths(longest):
    """4k, 8k, ... up to the longest."""
    return ",".join([f"{4 << i}k" for i in range(10) if (4096 << i) < tokens(longest)] + [longest])


def measure(args, batch, longest):
    """Returns the command as a reader types it, and the rows."""
    cmd = ["bench", "-m", args.model, "--load-format", "dummy", "--device", args.device, "--copy", "-p", "0", "-n", str(args.steps), "-r", "1",
           "-b", batch, "-d", depths(longest), "--attn", ",".join(METHODS), "-o", "json"]
    path = os.path.join(args.work, f"batch-{batch}.json")
    if not os.path.exists(path):
        print(f"batch {batch}: up to {longest} tokens", file=sys.stderr)
        run = subprocess.run([args.sleigh, *cmd], stdout=subprocess.PIPE, text=True)
        if run.returncode:
            sys.exit(f"sleigh {' '.join(cmd)}: exit {run.returncode}")
        with open(path, "w") as f:
            f.write(run.stdout)
    with open(path) as f:
        return "build/sleigh " + " ".join(cmd), json.load(f)


def number(x, digits):
    return "-" if x is None else f"{x:.{digits}f}"


def count(n):
    return f"{n // 1024}k" if n % 1024 == 0 else str(n)


def batch_table(rows):
    """Prints one line for each depth: every method's step, then the rates and energies."""
    of = {(r["depth"], r["attn"]): r for r in rows}
    names = [m.split(":")[0] for m in METHODS]
    head = [f"{n}, ms" for n in names] + [f"{n}, speedup" for n in names[1:]] + [f"{n}, % of peak" for n in names]
    head += [f"{n}, J / token" for n in names]
    print(f"| tokens | {' | '.join(head)} |\n|{'---|' * (1 + len(head))}")
    for depth in sorted({r["depth"] for r in rows}):
        at = [of[depth, m] for m in METHODS]
        cells = [f"{r['step_ms']:.3f}" for r in at] + [f"{at[0]['step_ms'] / r['step_ms']:.2f}" for r in at[1:]]
        cells += [number(100 * r["peak_share"], 1) for r in at] + [number(r["joules_token"], 3) for r in at]
        print(f"| {count(depth)} | " + " | ".join(cells) + " |")
    print()


def plot(args, found):
    """Draws the time of a step, and the speedup over dense attention, against tokens: one curve for each method and batch."""
    time, speedup = {}, {}
    for batch, (_, rows) in found.items():
        of = {(r["depth"], r["attn"]): r for r in rows}
        for method in METHODS:
            depths = sorted(depth for depth, name in of if name == method)
            time[f"{method}, batch {batch}"] = [(depth, *(of[depth, method][key] for key in BARS)) for depth in depths]
            if method != "dense":
                speedup[f"{method}, batch {batch}"] = [(depth, of[depth, "dense"]["step_ms"] / of[depth, method]["step_ms"])
                                                         for depth in depths]
    device = next(iter(found.values()))[1][0]["device"]
    draw(args.sleigh, args.stem + ".svg", f"a decode step of Llama-3.1-8B, {device}",
         [("time", "tokens of each sequence", "time of a step, ms", "log-x log-y lines ticks", time),
          ("speedup", "tokens of each sequence", "speedup over dense", "log-x lines ticks", speedup)])


def answer(found):
    """Dense attention and the last method at the longest context of one batch, the first one."""
    batch, (_, rows) = next(iter(found.items()))
    longest = max(r["depth"] for r in rows)
    ms = {r["attn"]: r["step_ms"] for r in rows if r["depth"] == longest}
    name = METHODS[-1]
    return (f"A step of {batch} sequence{'s' if batch != '1' else ''} with {count(longest)} tokens takes {ms['dense']:.2f} ms with dense attention and "
            f"{ms[name]:.2f} ms with `{name}` ({ms['dense'] / ms[name]:.2f} times as fast).")


def report(args, found):
    row = next(iter(found.values()))[1][0]
    sizes = "" if args.sizes == SIZES else f" --sizes '{args.sizes}'"
    tokens_k = sorted(x["depth"] // 1024 for _, rows in found.values() for x in rows)
    gpu = row["device"].split(",")[0].removeprefix("cuda: ")
    command = f"`python3 scripts/measure/bench_steps.py{sizes} -o {args.output}`"
    head = head_lines("How long does a decode step of an 8B model take, by context and batch?", answer(found), [time.strftime("%Y-%m-%d")],
                      [row["commit"]], command)
    print(f"""# Decode steps from {tokens_k[0]}k to {tokens_k[-1]}k tokens on one {gpu}

{head}

**A model of Llama-3.1-8B's shape with random weights** ({args.model}, bf16) on {row['device']} (driver {row['driver']}), commit
{row['commit']}: {', '.join(METHODS)}. Attention over random keys is flat, so methods draw as many distinct rows as they can. A step makes one token for each sequence of the batch. ms are
medians of {args.steps} steps. % of peak is the rate at which a step reads weights and KV rows, as a share of the {row['peak_gb_s']:.0f} GB/s
of a kernel that only reads. Joules are the energy of the whole GPU for each token of the whole batch (NVML, whose counter moves ten times a
second, so the energy of short runs has an error of about a third). The time to read only the weights is {row['floor_ms']:.2f} ms at the peak rate.

![step time and speedup against tokens]({os.path.basename(args.stem)}.svg)
""")
    for batch, (command, rows) in found.items():
        print(f"## {batch} sequence{'s' if batch != '1' else ''}\n\n    {command}\n")
        batch_table(rows)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sleigh", default="build/sleigh")
    p.add_argument("-m", "--model", default="models/llama-3.1-8b")
    p.add_argument("--device", default="cuda")
    p.add_argument("--sizes", default=SIZES, help=f"BATCH:LONGEST, separated by blanks (default {SIZES})")
    p.add_argument("--steps", type=int, default=48, help="decode steps of each row; energy needs at least 250 ms of steps")
    p.add_argument("--work", default="build/bench-steps")
    p.add_argument("-o", "--output", default="results/h100-steps.md")
    a = p.parse_args()
    a.stem = os.path.splitext(a.output)[0]
    os.makedirs(a.work, exist_ok=True)
    found = {batch: measure(a, batch, longest) for batch, longest in (size.split(":") for size in a.sizes.split())}
    plot(a, found)
    with open(a.output, "w") as out:
        sys.stdout = out
        report(a, found)


if __name__ == "__main__":
    main()
