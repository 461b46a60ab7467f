#!/usr/bin/env python3
"""Measures the mean of attention methods over many seeds on states of a model: one JSON for each text of --jsonl.

    python3 scripts/measure/real_means.py -m MODEL --jsonl texts.jsonl --attn 'santa:S=128,santa-pps:S=128' --seeds 200

Dense attention decodes the last two tokens of a text ("prompt" and "reference" of a line), and every method runs on the queries and keys of
these steps with each seed. The second step counts, because methods that plan with the step before have none in the first. For every layer
and head, the part of the error along dense attention's output is averaged over the seeds, and divided by the standard error of this mean.
For an unbiased method this number z is about normal with deviation 1: in 95% of the heads |z| < 1.96.

Methods draw from masses that are rounded to bf16. `topk` with every row shows what this rounding alone changes in a head, and its error is
subtracted from the errors of methods that draw from such masses of exact scores."""
import argparse
import collections
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading

from eval_error import expand
from measured_parts import count

STEPS = 2
EVERY_ROW = "topk:k=1048576"
NOT_STORED = "santa-is"  # combines exact masses
LEAST_ERROR = 1e-6       # of fp32 sums, relative to an output


def records(args, text, methods, tmp):
    """Yields the records of the last step, while the program writes them."""
    prompt, stats = os.path.join(tmp, "prompt.txt"), os.path.join(tmp, "stats.jsonl")
    with open(prompt, "w", encoding="utf-8") as f:
        f.write(text)
    run = subprocess.run([args.sleigh, "tokenize", "-m", args.model, "-f", prompt, "--bos"], capture_output=True, text=True)
    if run.returncode:
        sys.exit(run.stderr)
    n = run.stdout.count(",") + 1
    if os.path.exists(stats):
        os.remove(stats)
    os.mkfifo(stats)
    command = [args.sleigh, "generate", "-m", args.model, "-f", prompt, "--attn=dense", "--temp", "0", "-n", "1", "-t", str(args.threads),
               "--device", "cpu", "--ctx-size", str(n + 1), "--dense-prefix", str(n - STEPS), "--stats", stats, "--stats-seeds", str(args.seeds),
               "--no-display-prompt", "--quiet", *[word for m in methods for word in ("--stats-attn", m)]]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as p:
        errors = []
        reader = threading.Thread(target=lambda: errors.append(p.stderr.read()))
        reader.start()
        with open(stats, encoding="utf-8") as f:
            for line in f:
                r = json.loads(line)
                if r["position"] == n - 1:
                    yield r
        reader.join()
    if p.returncode:
        sys.exit(f"{' '.join(command)}: exit {p.returncode}\n{errors[0]}")


def judge(biases, rounding, errors):
    """biases: {(layer, head): [of each seed]}; rounding: {(layer, head): error of the stored masses}."""
    means = {head: statistics.fmean(values) - rounding[head] for head, values in biases.items()}
    ses = {head: statistics.stdev(values) / math.sqrt(len(values)) for head, values in biases.items()}
    drawn = [head for head in means if ses[head] > LEAST_ERROR]  # the others take the same rows with every seed
    z = [means[head] / ses[head] for head in drawn]
    return {"heads": len(means), "error": statistics.fmean(errors), "bias": statistics.fmean(means.values()),
            "bias_se": math.sqrt(sum(s * s for s in ses.values())) / len(ses), "bias_most": max(map(abs, means.values())), "z_heads": len(z),
            "z_rms": math.sqrt(statistics.fmean(x * x for x in z)), "z_most": max(map(abs, z)), "within": statistics.fmean(abs(x) < 1.96 for x in z),
            "off": sum(abs(x) > 5 for x in z)}


def measure(args, text, methods, tmp):
    """{method as the program writes it: figures}"""
    biases = collections.defaultdict(lambda: collections.defaultdict(list))
    errors = collections.defaultdict(list)
    for r in records(args, text, methods, tmp):
        biases[r["attn"]][r["layer"], r["head"]].append(r["bias"])
        errors[r["attn"]].append(r["error"])
    rounding = {head: values[0] for head, values in biases.pop(EVERY_ROW).items()}
    none = dict.fromkeys(rounding, 0.0)
    return {m: judge(biases[m], none if m.startswith(NOT_STORED) else rounding, errors[m]) for m in biases if m != "dense"}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sleigh", default="build/sleigh")
    p.add_argument("-m", "--model", required=True)
    p.add_argument("--jsonl", required=True)
    p.add_argument("--attn", required=True)
    p.add_argument("--seeds", type=count, default=200)
    p.add_argument("-t", "--threads", type=int, default=0)
    a = p.parse_args()
    methods = [EVERY_ROW, *expand(a.attn)]
    with open(a.jsonl, encoding="utf-8") as f:
        lines = [json.loads(line) for line in f]
    version = subprocess.run([a.sleigh, "version"], capture_output=True, text=True).stdout.split("\n", 1)[0]
    texts = []
    with tempfile.TemporaryDirectory() as tmp:
        for line in lines:
            print(f"{line['id']}: {len(methods) - 1} methods, {a.seeds} seeds", file=sys.stderr, flush=True)
            texts.append({"id": line["id"], "methods": measure(a, line["prompt"] + line["reference"], methods, tmp)})
    print(json.dumps({"version": version, "seeds": a.seeds, "texts": texts}))


if __name__ == "__main__":
    main()
