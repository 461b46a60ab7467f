#!/usr/bin/env python3
"""Measures the error of attention methods on states of the embedded model: the relative L2 error of one head's output compared with
dense attention, over all layers, heads, last positions and seeds of a few texts. This is the paper's same-state protocol: dense attention
decodes, and every method runs on the same queries and keys.

    python3 scripts/measure/eval_error.py --tokens 8192 --attn 'santa-prop:S=128,santa-pps:S={64,128}'

Columns: mean and median error for each kind of text; distinct V rows of a head (Table 20 of the SANTA paper); KV bytes read as a share of
dense attention's. For methods with several S the script also prints the slope of the log of the mean squared error on log S (Figure 7).
The first position of a text does not count, because methods that plan with the step before have none there. --plot needs gnuplot."""
import argparse
import collections
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile

sys.path += [os.path.join(os.path.dirname(os.path.abspath(__file__)), x) for x in ("..", "../train")]
import tiny_text
from sleigh_runs import draw, model_line, run_generate


def expand(text):
    """'a,b:S={1,2}' -> ['a', 'b:S=1', 'b:S=2']"""
    out = []
    for part in re.findall(r"(?:[^,{]|\{[^}]*\})+", text):
        m = re.match(r"(.*)\{([^}]*)\}(.*)", part)
        out += [m[1] + word + m[3] for word in m[2].split(",")] if m else [part]
    return out


def prompt_of(args, kind, index):
    context, questions = tiny_text.task_context(kind, random.Random(f"{args.seed}/{kind}/{index}"), args.tokens, 4)
    return context + questions[0][0]


def observe(args, text, methods, tmp):
    """Yields the records of one text: one dict for each line of --stats."""
    prompt, stats = os.path.join(tmp, "prompt.txt"), os.path.join(tmp, "stats.jsonl")
    with open(prompt, "w") as f:
        f.write(text)
    tokenize = [args.sleigh, "tokenize", "-m", args.model, "-f", prompt, "--bos"]
    n_prompt = len(subprocess.run(tokenize, capture_output=True, text=True, check=True).stdout.split(","))
    extra = ["--ctx-size", str(n_prompt + 1), "--dense-prefix", str(n_prompt - args.positions - 1), "--stats", stats, "--stats-seeds",
             str(args.seeds)]
    for m in methods:
        extra += ["--stats-attn", m]
    run_generate(args.sleigh, args.model, prompt, "dense", 1, args.threads, extra)
    first = None
    with open(stats) as f:
        for line in f:
            r = json.loads(line)
            first = r["position"] if first is None else first
            if r["position"] > first:
                yield r


def collect(args, methods, kinds):
    """Returns {method: {kind: [errors], "rows": [...], "bytes": [...]}} with the names of --attn."""
    found = {m: collections.defaultdict(list) for m in methods}
    with tempfile.TemporaryDirectory() as tmp:
        for kind in kinds:
            for i in range(args.texts):
                print(f"{kind}, text {i + 1} of {args.texts}", file=sys.stderr)
                for r, m in zip(observe(args, prompt_of(args, kind, i), methods, tmp), name_records(args, methods)):
                    if m is None:  # dense, which decodes
                        continue
                    found[m][kind].append(r["error"])
                    found[m]["rows"].append(r["v_rows"])
                    found[m]["bytes"].append(r["bytes"] / r["dense_bytes"])
    return found


def name_records(args, methods):
    """Yields the method of each record: for each step and layer all heads of dense, then those of each method and seed in order."""
    with open(os.path.join(args.model, "config.json")) as f:
        heads = json.load(f)["num_attention_heads"]
    while True:
        for m in [None] + [m for m in methods for _ in range(args.seeds)]:
            for _ in range(heads):
                yield m


def slopes(found, kinds):
    """{method without its S: slope of log mean squared error on log S}"""
    points = collections.defaultdict(list)
    for m, f in found.items():
        s = re.search(r":S=(\d+)", m)
        if s:
            square = statistics.fmean(e * e for kind in kinds for e in f[kind])
            points[m.replace(s[0], "")].append((math.log(int(s[1])), math.log(max(square, 1e-30))))
    return {m: statistics.linear_regression(*zip(*p)).slope for m, p in points.items() if len(p) > 2}


def curves_of(rows):
    """{method without its budget: [(V rows of a head, KV bytes in %, mean error)]}"""
    lines = collections.defaultdict(list)
    for r in rows:
        name = re.sub(r":(S|k|L|B|bits|window|tokens|p)=[\d.]+", "", r["attn"], count=1)
        name = re.sub(r":epsilon=[\d.]+", ":epsilon", name)
        lines[name].append((r["rows"], 100 * r["bytes"], r["mean"]))
    return {name: sorted(points) for name, points in lines.items()}


def plot(sleigh, path, curves, tokens):
    """Draws mean errors: against V rows for methods that score every key and then read a few rows, and against KV bytes for the others, with
    santa-prop and santa-pps for comparison."""
    scores_all = {name for name, points in curves.items() if all(b >= 50 and rows < tokens / 2 for rows, b, _ in points)}
    by_rows = {name: [(rows, e) for rows, _, e in points] for name, points in curves.items() if name in scores_all}
    by_bytes = {name: [(b, e) for _, b, e in points] for name, points in curves.items()
                if name not in scores_all or name in ("santa-prop", "santa-pps")}
    panels = [("methods that score every key", "rows of V that a head reads", "mean relative error of a head", "log-x log-y lines", by_rows),
              ("the other methods", "KV bytes read, % of dense attention", "mean relative error of a head", "log-x log-y lines", by_bytes)]
    draw(sleigh, path, f"embedded model, {tokens} tokens", [p for p in panels if p[4]])


def measure(a):
    methods, kinds = expand(a.attn), a.kinds.split(",")
    found = collect(a, methods, kinds)
    rows = []
    for m, f in found.items():
        row = {"attn": m, "mean": statistics.fmean(e for kind in kinds for e in f[kind]),
               "rows": statistics.fmean(f["rows"]), "bytes": statistics.fmean(f["bytes"])}
        for kind in kinds:
            row[kind] = [statistics.fmean(f[kind]), statistics.median(f[kind])]
        rows.append(row)
    return {"model": model_line(a.sleigh, a.model), "tokens": a.tokens, "texts": a.texts, "kinds": kinds, "outputs": len(found[methods[0]][kinds[0]]), "rows": rows,
            "slopes": slopes(found, kinds)}


def table(result):
    kinds = result["kinds"]
    print(result["model"] + "\n")
    print(f"{result['tokens']} tokens, {result['texts']} texts of each kind, {result['outputs']} head outputs a cell; mean / median "
          "relative error\n")
    print(f"| method | {' | '.join(kinds)} | V rows a head | KV bytes |\n|---|" + "---|" * (len(kinds) + 2))
    for r in result["rows"]:
        cells = [f"{r[kind][0]:.3f} / {r[kind][1]:.3f}" for kind in kinds]
        print(f"| {r['attn']} | {' | '.join(cells)} | {r['rows']:.1f} | {100 * r['bytes']:.1f}% |")
    if result["slopes"]:
        print("\nslope of log mean squared error on log S: " + ", ".join(f"{m} {s:.2f}" for m, s in result["slopes"].items()))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sleigh", default="build/sleigh")
    p.add_argument("-m", "--model", default="models/tiny")
    p.add_argument("--tokens", type=int, default=8192)
    p.add_argument("--kinds", default="two-hop,frequent-words")
    p.add_argument("--texts", type=int, default=4, help="texts of each kind")
    p.add_argument("--positions", type=int, default=8, help="last positions of a text")
    p.add_argument("--seeds", type=int, default=6)
    p.add_argument("--attn", default="santa-prop:S=128,santa-pps:S=128,santa-is:S={128,256}")
    p.add_argument("--seed", type=int, default=20261121, help="seed of the texts")
    p.add_argument("-t", "--threads", type=int, default=0)
    p.add_argument("-o", "--output", choices=("md", "json"), default="md")
    p.add_argument("--render", metavar="FILE.json", help="only print (and plot) a result that -o json wrote")
    p.add_argument("--plot", metavar="FILE", help="draw mean error against rows and bytes into an .svg, .pdf or .png; writes a data file too")
    a = p.parse_args()
    if a.render:
        with open(a.render) as f:
            result = json.load(f)
    else:
        result = measure(a)
    if a.output == "json":
        print(json.dumps(result, indent=1))
    else:
        table(result)
    if a.plot:
        plot(a.sleigh, a.plot, curves_of(result["rows"]), result["tokens"])


if __name__ == "__main__":
    main()
