#!/usr/bin/env python3
"""Prints Tables 1, 3, 20, 26, 28 and 29, parts of Tables 18 and 30, and Figures 4, 6, 7 and 8 of the SANTA paper with our numbers next to the
paper's, from the folder that scripts/measure/reproduce.sh filled.

    SIZES=8k:32 STATES=8k:8 python3 scripts/measure/reproduce.py --name tiny --model models/tiny --results results build/reproduce-tiny

If a part is not in the folder, the report does not mention it. --records FILE turns prompts of `sleigh eval --dump` into records for
`sleigh compare`: context, question with the beginning of the answer, and an id."""
import argparse
import json
import os
import statistics
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from sleigh_runs import head_lines

# The paper's NIAH is niah_multivalue (Table 25). Its grader reads the first four integers of the answer; ours looks for the four numbers.
TASKS = {"fwe": "FWE", "niah-multivalue": "NIAH", "qa-1hop": "QA1", "qa-2hop": "QA2"}
# Llama-3.1-8B-Instruct: points, and half of the 95% interval.
TABLE_1 = {
    "dense": ((95.60, 1.00), (98.35, 0.62), (64.00, 4.10), (58.80, 4.10)),
    "santa-prop:S=128": ((95.40, 1.10), (98.25, 0.62), (64.40, 4.50), (60.20, 4.20)),
    "santa-prop:S=256": ((95.47, 1.10), (98.50, 0.57), (63.40, 4.10), (60.60, 4.00)),
    "santa-prop:S=1024": ((95.40, 1.07), (98.40, 0.60), (64.20, 4.00), (59.60, 4.40)),
    "santa-flash:S=256": ((66.20, 2.40), (88.95, 1.43), (63.00, 4.20), (57.20, 4.30)),
    "santa-flash:S=1024": ((91.60, 1.43), (98.10, 0.62), (62.20, 4.10), (61.00, 4.30)),
    "santa-flash:S=2048": ((94.13, 1.13), (98.25, 0.62), (64.60, 4.20), (60.00, 4.40)),
}
TABLE_26 = {
    "dense": ((98.53, 0.60), (94.55, 1.00), (71.80, 3.90), (68.60, 4.20)),
    "santa-prop:S=64": ((96.60, 0.52), (93.23, 0.69), (70.73, 2.43), (67.33, 2.46)),
    "santa-prop:S=128": ((98.04, 0.40), (93.78, 0.60), (70.33, 2.40), (66.87, 2.43)),
    "santa-prop:S=256": ((98.07, 0.40), (94.05, 0.62), (70.67, 2.33), (66.40, 2.30)),
    "santa-flash:S=64": ((66.47, 1.12), (83.57, 1.05), (65.67, 2.44), (62.27, 2.40)),
    "santa-flash:S=128": ((86.11, 0.91), (91.70, 0.73), (69.47, 2.30), (66.27, 2.50)),
    "santa-flash:S=256": ((94.80, 0.62), (92.77, 0.63), (70.67, 2.20), (66.80, 2.50)),
    "santa-flash:S=1024": ((98.11, 0.40), (94.22, 0.58), (70.73, 2.30), (66.33, 2.40)),
}
TABLE_18 = {
    "dense": (28.363, 1.509),
    "santa-flash:S=128": (8.748, 2.964), "santa-flash:S=256": (14.049, 3.504), "santa-flash:S=512": (26.574, 3.740),
    "santa-flash:S=1024": (27.170, 1.509), "santa-flash:S=2048": (28.827, 3.422),
    "santa-prop:S=64": (29.092, 2.534), "santa-prop:S=128": (28.098, 1.028), "santa-prop:S=256": (28.694, 1.029),
    "santa-prop:S=1024": (28.562, 1.588),
}
TABLE_28 = {  # L2 error, cosine, top-1 agreement %
    "fwe": {"santa-flash:S=256": (0.244, 0.963, 91), "santa-flash:S=1024": (0.091, 0.993, 97),
            "santa-flash:S=2048": (0.055, 0.997, 97), "santa-prop:S=128": (0.131, 0.986, 96),
            "santa-prop:S=256": (0.085, 0.994, 97), "santa-prop:S=1024": (0.035, 0.999, 98)},
    "qa-2hop": {"santa-flash:S=256": (0.572, 0.851, 91), "santa-flash:S=1024": (0.233, 0.968, 97),
                "santa-flash:S=2048": (0.144, 0.986, 99), "santa-prop:S=128": (0.208, 0.967, 99),
                "santa-prop:S=256": (0.141, 0.983, 97), "santa-prop:S=1024": (0.063, 0.996, 99)},
}
TABLE_29 = {  # L2 error, cosine with 1, 2, 3-4, 5-8, 9+ tiles
    "fwe": ((0.035, 0.998), (0.047, 0.998), (0.068, 0.997), (0.084, 0.995), (0.073, 0.996)),
    "qa-2hop": ((0.055, 0.997), (0.117, 0.991), (0.170, 0.982), (0.175, 0.981), (0.190, 0.978)),
}
TABLE_3 = {"dense": (56.69, 101.22, 8.237, 1.000), "santa-flash:S=2048": (56.61, 80.97, 6.589, 1.250),
           "santa-prop:S=128": (57.03, 82.36, 6.702, 1.229)}


class Results:
    def __init__(self, folder, pictures):
        self.folder, self.pictures = folder, pictures

    def has(self, part):
        return os.path.exists(os.path.join(self.folder, part))

    def text(self, part):
        with open(os.path.join(self.folder, part)) as f:
            return f.read()

    def load(self, part):
        return json.loads(self.text(part))

    def command(self, part):
        print(f"    {self.text(part + '.cmd').strip()}\n")

    def picture(self, name, what):
        if os.path.exists(os.path.join(self.pictures, name)):
            print(f"![{what}]({name})\n")


def table(head, rows):
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    print()


def points(row):
    return f"{100 * row['score']:.1f} ({100 * row['score_low']:.1f} to {100 * row['score_high']:.1f})"


def pair(paper):
    return f"{paper[0]:g} ± {paper[1]:g}" if paper else ""


def accuracy(args, results, length, paper, number):
    part = f"accuracy-{length}.json"
    if not results.has(part):
        return
    rows = results.load(part)["rows"]
    methods = list(dict.fromkeys(r["attn"] for r in rows))
    of = {(r["attn"], r["task"]): r for r in rows}
    print(f"## Table {number}: accuracy with {length} prompts, {of['dense', 'fwe']['samples']} questions for each task\n")
    results.command(part)
    head = ["method"] + [x for t in TASKS.values() for x in (t, "paper")] + ["mean", "KV bytes %"]
    body = []
    for m in methods:
        cells = [m]
        for i, task in enumerate(TASKS):
            cells += [points(of[m, task]), pair(paper.get(m, (None,) * 4)[i])]
        body.append(cells + [points(of[m, "all"]), f"{100 * of[m, 'all']['kv_bytes_share']:.1f}"])
    table(head, body)
    results.picture(f"reproduce-{args.name}-accuracy-{length}.svg", f"accuracy against bytes read, {length}")


def long_bench(results, length):
    given, tasks = results.has("long-bench.json"), f"accuracy-{length}.json"
    if not given and not results.has(tasks):
        return
    rows = [r for r in results.load("long-bench.json" if given else tasks)["rows"] if r["task"] == "all"]
    print("## Table 18: budgets on LongBench v2\n")
    if given:
        results.command("long-bench.json")
    else:
        print("LongBench v2 was not given (LONGBENCH=FILE). The table shows the same budgets on our tasks next to the paper's scores: compare\n"
              "how scores fall with the budget, not the levels.\n")
    of = {r["attn"]: r for r in rows}
    table(["method", "ours" if given else f"ours: mean of the tasks above, {length}", "paper"],
          [[m, points(of[m]), pair(paper)] for m, paper in TABLE_18.items() if m in of])


def one_hot(results):
    layers, n = [], 0
    while results.has(f"one-hot-{n}.json"):
        layers.append(n)
        n += 1
    if not layers or not results.has("one-hot-none.json"):
        return
    print("## Figure 8: one layer with S = 1, the others with S = 256\n")
    results.command("one-hot-0.json")
    rows = []
    for layer in ["none", *layers]:
        row = results.load(f"one-hot-{layer}.json")["rows"][-1]
        rows.append([str(layer), points(row)])
    table(["layer with S = 1", "right, %"], rows)
    print("In the paper the scores of Llama 8B fail with S = 1 in the first layer, and hardly change with S = 1 in another layer.\n")


def l2_and_cosine(x):
    return [f"{x[key]:.3f}" if x[key] is not None else "-" for key in ("l2", "cosine")]


def interleave(ours, paper):
    """[a, b] and (x, y) as the cells a, x, b, y."""
    return [cell for pair in zip(ours, map(str, paper)) for cell in pair]


def same_state(args, results, length):
    parts = {task: f"same-state-{task}-{length}.json" for task in TABLE_28}
    if not all(map(results.has, parts.values())):
        return
    found = {task: results.load(part)["methods"] for task, part in parts.items()}
    print(f"## Table 28 at {length}: heads of the last layer on the states of dense attention\n")
    results.command(parts["fwe"])
    rows, by_tiles = [], []
    for task, methods in found.items():
        for m in methods:
            last = max(h["layer"] for h in m["heads"])
            mean = {key: statistics.fmean(h[key] for h in m["heads"] if h["layer"] == last) for key in ("l2", "cosine")}
            p = TABLE_28[task].get(m["attn"], ("",) * 3)
            top1 = f"{100 * m['top1']:.1f} ({100 * m['top1_low']:.1f} to {100 * m['top1_high']:.1f})"
            rows.append([TASKS[task], m["attn"], *interleave([*l2_and_cosine(mean), top1], p)])
        flash = next(m for m in methods if m["attn"] == "santa-flash:S=2048")
        by_tiles += [[TASKS[task], t["tiles"], str(t["head_outputs"]), *interleave(l2_and_cosine(t), p)]
                     for t, p in zip(flash["tiles"], TABLE_29[task])]
    table(["task", "method", "L2", "paper", "cosine", "paper", "top-1 agreement %", "paper"], rows)
    for task in TABLE_28:
        results.picture(f"reproduce-{args.name}-error-{task}-{length}.svg", f"errors of heads, {TASKS[task]}, {length}")
    print("For our top-1 agreement, the method decodes every step, so each step sees the errors of all earlier steps. For the paper's, only one step is\n"
          "approximate, and all earlier steps are dense.\n")
    print(f"## Table 29 at {length}: santa-flash:S=2048 against the tiles that hold 90% of the mass\n")
    table(["task", "tiles", "head outputs", "L2", "paper", "cosine", "paper"], by_tiles)
    print(f"## Table 30 at {length}: tile size\n\nA tile is a page of the KV cache, 256 rows, so the table has only the tile size 256.\n")
    table(["task", "tile", "L2", "paper", "cosine", "paper"],
          [[r[0], "256", *r[2:6]] for r in rows if r[1] == "santa-flash:S=2048"])


def figures(results):
    if not results.has("figures.md"):
        return
    print(results.text("figures.md"))
    results.command("figures.md")
    print("Figure 6 uses random queries and keys, as in the paper. At B = 4 the closed forms give 0.555 and 0.286. Independent draws have the\n"
          "theoretical slope of -1. Stratified and systematic draws fall faster.\n")


def decode_speed(results):
    if not results.has("decode.json"):
        return
    rows = results.load("decode.json")
    first = rows[0]
    print(f"## Table 3: a batch of {first['batch']} at 30k tokens\n")
    results.command("decode.json")
    what = "dummy weights" if first["dummy"] else "its weights"
    print(f"Ours: **{first['model']} with {what}** on {first['device']}, {first['n_gen']} tokens for each sequence (commit {first['commit']}); the\n"
          "paper: Llama-3.1-8B on an RTX 6000 Ada, 2,048 tokens for each sequence.\n")
    head = ["method", "prefill s/batch", "paper", "decode s/batch", "paper", "ms / output token", "paper", "speedup", "paper"]
    body = []
    for r in rows:
        ours = (f"{r['prefill_s']:.2f}", f"{r['decode_s']:.3f}", f"{r['token_ms']:.3f}", f"{r['speedup']:.3f}")
        body.append([r["attn"], *interleave(ours, [f"{x:g}" for x in TABLE_3[r["attn"]]] if r["attn"] in TABLE_3 else [""] * 4)])
    table(head, body)


def kernels(args, results):
    print("## Figure 4: only attention\n")
    if not results.has("kernels.json"):
        print("Kernels are timed on a GPU, and no such part is in the folder.")
        return
    found = results.load("kernels.json")
    results.command("kernels.json")
    us = {}
    for r in found["rows"]:
        us.setdefault(r["size"].removeprefix("1 x "), {})[r["attn"]] = r["us"]
    methods = list(next(iter(us.values())))
    print(f"**The shape of Llama-3.1-8B** (32 query heads, 8 KV heads of dimension 128, bf16, random keys and values, peaked queries) on\n"
          f"{found['device']}: microseconds for one new token of one sequence, and the speedup over dense attention.\n")
    table(["rows", *methods], [[size, *(f"{at[m]:.1f}" + ("" if m == "dense" else f" ({at['dense'] / at[m]:.2f}x)") for m in methods)]
                               for size, at in us.items()])
    results.picture(f"reproduce-{args.name}-kernels.svg", "attention of a decode step against rows")
    print("The paper, RTX 6000 Ada, 32k: santa-prop:S=128 is 1.50 times as fast as FlashInfer, santa-flash:S=2048 1.51 times.")


def answer(results, lengths):
    """The score of dense attention and of two methods with the longest prompts."""
    length = next((x for x in reversed(lengths) if results.has(f"accuracy-{x}.json")), None)
    if not length:
        return "The tables have the figures."
    of = {r["attn"]: r for r in results.load(f"accuracy-{length}.json")["rows"] if r["task"] == "all"}
    names = [name for name in ("dense", "santa-prop:S=128", "santa-flash:S=2048") if name in of]
    return f"With {length} prompts, the mean scores are: " + ", ".join(f"`{name}` {100 * of[name]['score']:.1f}%" for name in names) + "."


def source_of(results):
    """The first part that names its version and commit; None."""
    for part in sorted(os.listdir(results.folder)):
        if part.endswith(".json") and part.startswith(("same-state-", "accuracy-", "one-hot-", "long-bench")):
            return results.load(part)
    return None


def report(args):
    results = Results(args.folder, args.results)
    sizes, states = os.environ["SIZES"], os.environ["STATES"]
    lengths, embedded = [size.split(":")[0] for size in sizes.split()], args.name == "tiny"
    source = source_of(results)
    print(f"# What the SANTA paper reports, on {args.model}\n")
    print(head_lines("Do Tables 1, 3, 20, 26, 28 and 29 of the SANTA paper, and parts of Tables 18 and 30, repeat on this model?",
                     answer(results, lengths), [time.strftime("%Y-%m-%d")],
                     [source["commit"]] if source else [],
                     f"`SIZES=\"{sizes}\" STATES=\"{states}\" scripts/measure/reproduce.sh{'' if embedded else ' ' + args.model}`") + "\n")
    device = f" sleigh {source['version']}, {source.get('device') or source['settings']['device']}." if source else ""
    print(f"Each table follows the command that measured it.{device}\n")
    if embedded:
        print("**Our figures are of the embedded model** (4 layers, 1,024 tokens of vocabulary, trained with the wording of these tasks), unless a section\n"
              "names another model. The paper's figures are of Llama-3.1-8B-Instruct, so compare orders, slopes and failures, and not levels. The tasks are\n"
              "those of `sleigh eval` in set-up B, which also decodes the question with the method.\n")
    print("The pictures show the figures of this page; `build/sleigh plot FILE.dat` draws one again.\n")
    for length in lengths:
        accuracy(args, results, length, TABLE_1 if length == "32k" else TABLE_26, 1 if length == "32k" else 26)
    long_bench(results, lengths[0])
    one_hot(results)
    for size in states.split():
        same_state(args, results, size.split(":")[0])
    figures(results)
    decode_speed(results)
    kernels(args, results)


def records(path, chat):
    with open(path) as f:
        for line in f:
            r = json.loads(line)
            question = r["question"]
            print(json.dumps({"context": r["input"][: len(r["input"]) - len(question)],
                              "question": question + ("" if chat else r["answer_prefix"]), "id": r["index"]}))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--records", metavar="FILE.jsonl")
    p.add_argument("--chat", action="store_true", help="with --records: omit the beginning of the answer")
    p.add_argument("--name")
    p.add_argument("--model")
    p.add_argument("--results", help="the folder with the pictures")
    p.add_argument("folder", nargs="?")
    a = p.parse_args()
    if a.records:
        records(a.records, a.chat)
    else:
        report(a)


if __name__ == "__main__":
    main()
