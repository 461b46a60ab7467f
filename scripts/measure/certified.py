#!/usr/bin/env python3
"""Measures stated errors of layers and carried budgets on states of a model, and prints the tables of results/certified.md.

    python3 scripts/measure/certified.py --tokens 8k 32k                            # hours on two cores; keeps the figures of each length
    python3 scripts/measure/certified.py --tokens 8k --part stated                  # one part; without --part all but the simulation
    python3 scripts/measure/certified.py --render                                   # prints the tables of the kept figures
    python3 scripts/measure/certified.py -m models/prose --books build/prose-work/books-8k.jsonl --part stated --results results/certified/prose

Texts have a fact to find (needle) or two facts to join (two-hop); scripts/train/tiny_text.py makes them. With --books, the texts are those of an
input of scripts/measure/prose_results.py, whose length is --tokens. Dense attention decodes the last --positions tokens of a text, and every method
runs on the same queries and keys with its own state and --seeds seeds. The first --skip of these steps do not count, because a sequence's
first step searches for its threshold and the next steps learn the spread of its errors.

Parts:
    stated    methods that state an error of a layer: rows, certified share, epsilon', and the share of errors above epsilon'
    budgets   even and carried budgets: rows of a layer and of a head, errors
    tokens    the same methods decode a text's last --score tokens: KL divergence from dense attention (sleigh compare)
    simulation  the fewest rows that certify a layer-step, if |mu| is known, at the steps of part `stated`. Needs torch, best with a GPU"""
import argparse
import collections
import datetime
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile

sys.path += [os.path.join(os.path.dirname(os.path.abspath(__file__)), x) for x in ("..", "../train")]
import tiny_text
from eval_error import name_records, observe, prompt_of
from measured_parts import count
from sleigh_runs import model_line

EPSILONS = (0.05, 0.1, 0.2, 0.3, 0.5)
DELTAS = (0.05, 0.1, 0.2)
BUDGETS = (32, 64, 128, 256, 512)
METHODS = {"santa-pps": "santa-pps", "santa-is": "santa-is:proposal=int8"}


def stated(method, epsilon, delta, bound):
    layer = ":certify=layer" if method == "santa-pps" else ""
    return f"{METHODS[method]}:epsilon={epsilon:g}:delta={delta:g}{layer}:bound={bound}"


def stated_methods():
    """{specification: (method, epsilon, delta, bound)}"""
    out = [("santa-pps", e, 0.05, b) for e in EPSILONS for b in ("clt", "chi2")]
    out += [("santa-is", e, 0.05, b) for e in EPSILONS for b in ("clt", "chi2")]
    out += [("santa-pps", 0.2, d, b) for d in DELTAS for b in ("clt", "bernstein", "chi2")]
    out += [("santa-is", 0.2, d, b) for d in DELTAS for b in ("clt", "chi2")]
    return {stated(*key): key for key in out}


def budget_methods():
    """{specification: (method, budget, S)}"""
    words = [("santa-pps:S={}:budget=even", "santa-pps", "even"), ("santa-pps:S={}:budget=carried", "santa-pps", "carried"),
             ("santa-is:S={}:budget=even", "santa-is", "even"), ("santa-is:S={}:budget=carried", "santa-is", "carried")]
    return {text.format(s): (method, budget, s) for text, method, budget in words for s in BUDGETS}


# ---- measurements ----

def books(args):
    """The first lines of --books: {"id", "prompt", "reference"}."""
    with open(args.books) as f:
        return [json.loads(line) for line, _ in zip(f, range(args.texts))]


def texts_of(args):
    """[(name, text)]"""
    if args.books:
        return [(book["id"], book["prompt"] + book["reference"]) for book in books(args)]
    return [(f"{kind} {i + 1}", prompt_of(args, kind, i)) for kind in args.kinds.split(",") for i in range(args.texts)]


def layer_steps(args, methods):
    """Yields (method, records of the layer's heads) for every counted layer and step of every text."""
    with open(os.path.join(args.model, "config.json")) as f:
        heads = json.load(f)["num_attention_heads"]
    with tempfile.TemporaryDirectory() as tmp:
        for name, text in texts_of(args):
            print(name, file=sys.stderr)
            first, group = None, []
            for r, m in zip(observe(args, text, methods, tmp), name_records(args, methods)):
                first = r["position"] if first is None else first
                if m is None or r["position"] < first + args.skip - 1:
                    continue
                group.append(r)
                if len(group) == heads:
                    yield m, group
                    group = []


def measure_stated(args):
    found = {m: collections.defaultdict(list) for m in stated_methods()}
    for m, group in layer_steps(args, list(found)):
        layer, f = group[0], found[m]
        stated_error = math.inf if layer["stated_error"] is None else layer["stated_error"]
        f["missed"].append(layer["layer_error"] > stated_error)
        f["missed_heads"] += [r["error"] > stated_error for r in group]
        f["certified"].append(layer["certified"])
        f["stated"].append(stated_error)
        f["error"].append(layer["layer_error"])
        f["rows"].append(statistics.fmean(r["samples"] for r in group))
    return {m: {"layer_steps": len(f["missed"]), "missed": sum(f["missed"]), "heads": len(f["missed_heads"]),
                "missed_heads": sum(f["missed_heads"]), "certified": statistics.fmean(f["certified"]),
                "unbounded": sum(map(math.isinf, f["stated"])), "stated": statistics.fmean(x for x in f["stated"] if x < math.inf),
                "stated_most": max(x for x in f["stated"] if x < math.inf), "error": statistics.fmean(f["error"]),
                "rows": statistics.fmean(f["rows"])} for m, f in found.items()}


def spread(values):
    values = sorted(values)
    return {"mean": statistics.fmean(values), "p50": values[len(values) // 2], "p99": values[int(0.99 * (len(values) - 1))], "most": values[-1]}


def measure_budgets(args):
    found = {m: collections.defaultdict(list) for m in budget_methods()}
    for m, group in layer_steps(args, list(found)):
        f = found[m]
        f["head_rows"] += [r["samples"] for r in group]
        f["layer_rows"].append(statistics.fmean(r["samples"] for r in group))
        f["errors"] += [r["error"] for r in group]
        f["layer_errors"].append(group[0]["layer_error"])
    return {m: {"head_rows": spread(f["head_rows"]), "layer_rows": spread(f["layer_rows"]), "mean": statistics.fmean(f["errors"]),
                "median": statistics.median(f["errors"]), "layer": statistics.fmean(f["layer_errors"]), "outputs": len(f["errors"])}
            for m, f in found.items()}


def tiny_references(args):
    """Texts whose last --score tokens are the reference."""
    for kind in args.kinds.split(","):
        for i in range(args.texts):
            text, _ = tiny_text.task_context(kind, tiny_text.random.Random(f"{args.seed}/{kind}/{i}"), args.tokens, 4)
            at = text.rindex(" ", 0, len(text) - 3 * args.score)  # a token has about three bytes
            yield {"prompt": text[:at], "reference": text[at:]}


def measure_tokens(args):
    methods = list(budget_methods())
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "texts.jsonl")
        with open(path, "w") as f:
            f.writelines(json.dumps(line) + "\n" for line in (books(args) if args.books else tiny_references(args)))
        command = [args.sleigh, "compare", "-m", args.model, "--jsonl", path, "--no-texts", "-o", "json", "-s", str(args.first_seed),
                   "-t", str(args.threads), "--attn", ",".join(methods)]
        out = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    keys = ("kl", "kl_se", "top1", "l2", "l2_median", "samples", "positions")
    return {m: {key: r[key] for key in keys} for m, r in zip(methods, out["methods"])}


# ---- simulation ----

def fewest_rows(sizes, target):
    """The fewest rows whose bound z sqrt(kappa light) is at most target, with one kappa for all. sizes: p |v| of a layer's rows, as a tensor
    of doubles. The m largest rows are heavy, and light is the sum of the others, which are at most kappa. A lower bound: a method takes no
    row below kappa as heavy, and needs more draws where it has fewer than 30."""
    import torch
    sizes = torch.cat((sizes.sort(descending=True).values, sizes.new_zeros(1)))
    light, square = sizes.flip(0).cumsum(0).flip(0), (target / statistics.NormalDist().inv_cdf(0.975)) ** 2
    rows = torch.arange(len(sizes), device=sizes.device) + light * light / square  # kappa = square / light
    return math.ceil(rows[light * sizes <= square].min())


def simulate_text(model, ids, steps, found):
    """Appends the rows of a head to found[epsilon], for each layer and each of the last `steps` positions."""
    from attention_states import states_of
    c, (q, k, v) = model.c, (x.float() for x in states_of(model, ids, steps))
    n_heads, n_kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
    for layer in range(c["num_hidden_layers"]):
        own, own_kv = slice(layer * n_heads, (layer + 1) * n_heads), slice(layer * n_kv_heads, (layer + 1) * n_kv_heads)
        keys, values = (x[own_kv].repeat_interleave(n_heads // n_kv_heads, 0) for x in (k, v))
        for t in range(steps):
            n = len(ids) - steps + t + 1
            p = (keys[:, :n] @ q[t, own, :, None] / math.sqrt(c["head_dim"])).softmax(1)  # [heads][n][1]
            mu, sizes = (p * values[:, :n]).sum(1).norm().item(), (p[..., 0] * values[:, :n].norm(dim=2)).flatten().double()
            for e in EPSILONS:
                found[e].append(fewest_rows(sizes, e / (1 + e) * mu) / n_heads)


def measure_simulation(args):
    import torch
    from attention_states import open_model
    model, tokenizer = open_model(args.model)
    found = {e: [] for e in EPSILONS}
    for name, text in texts_of(args):
        print(name, file=sys.stderr)
        ids = torch.tensor([tokenizer.bos, *tokenizer.encode(text)], device=model.norm.device)
        simulate_text(model, ids, args.positions - args.skip + 1, found)  # the steps that layer_steps counts
    return {f"{e:g}": statistics.fmean(rows) for e, rows in found.items()}


PARTS = {"stated": measure_stated, "budgets": measure_budgets, "tokens": measure_tokens, "simulation": measure_simulation}


def about(args, part):
    version = subprocess.run([args.sleigh, "version"], capture_output=True, text=True, check=True).stdout
    return {"date": datetime.date.today().strftime("%-d %B %Y"), "commit": re.search(r"commit ([\w-]+)", version)[1], "model": model_line(args.sleigh, args.model),
            "kinds": "book" if args.books else args.kinds,
            "texts": args.texts, "positions": args.positions, "skip": args.skip, "seeds": args.seeds, "seed": args.seed, "score": args.score,
            "part": part}


# ---- tables ----

def wilson(k, n):
    """The 95% interval of a share."""
    z, p = 1.959964, k / n
    middle, half = p + z * z / 2 / n, z * math.sqrt(p * (1 - p) / n + z * z / 4 / n / n)
    return max(0, (middle - half) / (1 + z * z / n)), (middle + half) / (1 + z * z / n)


def share(k, n):
    low, high = wilson(k, n)
    return f"{100 * k / n:.2f}% ({100 * low:.2f} to {100 * high:.2f}%)"


def line(*cells):
    print("| " + " | ".join(cells) + " |")


def head(*names):
    line(*names)
    print("|" + "---|" * len(names))


def render_rows(lengths):
    print("### Rows of a head, delta 5%\n")
    head("tokens", "method, bound", *(f"epsilon {e:g}" for e in EPSILONS))
    for size, found in lengths.items():
        simulated = [found["simulation"]["figures"][f"{e:g}"] for e in EPSILONS] if "simulation" in found else None
        if simulated:
            line(size, "simulation", *(f"{x:.0f}" for x in simulated))
        for method in METHODS:
            for bound in ("clt", "chi2"):
                rows = [found["stated"]["figures"][stated(method, e, 0.05, bound)]["rows"] for e in EPSILONS]
                by = [f" ({x / y:.2f})" for x, y in zip(rows, simulated)] if simulated and method == "santa-pps" else [""] * 5
                line(size, f"`{method}`, {bound}", *(f"{x:.0f}{y}" for x, y in zip(rows, by)))
    print()


def render_stated(lengths, keep, title):
    print(f"### {title}\n")
    head("tokens", "method", "epsilon", "delta", "bound", "certified", "mean epsilon'", "largest epsilon'", "mean error of a layer",
         "layer-steps", "errors above epsilon', layers (95% interval)", "heads")
    for size, found in lengths.items():
        for m, (method, epsilon, delta, bound) in stated_methods().items():
            f = found["stated"]["figures"][m]
            if keep(epsilon, delta):
                line(size, f"`{method}`", f"{epsilon:g}", f"{100 * delta:g}%", bound, f"{100 * f['certified']:.0f}%", f"{f['stated']:.3f}",
                     f"{f['stated_most']:.3f}" + (f", {f['unbounded']} infinite" if f["unbounded"] else ""), f"{f['error']:.3f}",
                     str(f["layer_steps"]), share(f["missed"], f["layer_steps"]), f"{100 * f['missed_heads'] / f['heads']:.2f}%")
    print()


def at_rows(points, rows):
    """The value at `rows` on the line through points (rows, value) in logarithms."""
    points = sorted(points)
    i = next((i for i in range(1, len(points) - 1) if rows < points[i][0]), len(points) - 1)
    (x0, y0), (x1, y1) = points[i - 1], points[i]
    t = math.log(rows / x0) / math.log(x1 / x0)
    return math.exp((1 - t) * math.log(y0) + t * math.log(y1))


def render_budgets(lengths):
    print("### Errors with carried and with even budgets\nThe columns \"of even\" divide by the value of even budgets at the same mean number of "
          "rows (a line through the budgets, in logarithms).\n")
    head("tokens", "method", "S", "rows, even", "rows, carried", "mean error, even", "carried", "of even", "median, even", "carried", "of even",
         "error of a layer, of even", "KL, even", "KL, carried", "of even")
    for size, found in lengths.items():
        b, k = found["budgets"]["figures"], found["tokens"]["figures"] if "tokens" in found else None
        for method in METHODS:
            even, carried = ([m for m, key in budget_methods().items() if key[:2] == (method, name)] for name in ("even", "carried"))
            for e, c, s in zip(even, carried, BUDGETS):
                rows = b[c]["head_rows"]["mean"]
                of = {key: b[c][key] / at_rows([(b[m]["head_rows"]["mean"], b[m][key]) for m in even], rows) for key in ("mean", "median", "layer")}
                kl = ["", "", ""]
                if k:
                    ratio = k[c]["kl"] / at_rows([(k[m]["samples"], k[m]["kl"]) for m in even], k[c]["samples"])
                    kl = [f"{k[m]['kl']:.5f} +- {k[m]['kl_se']:.5f}" for m in (e, c)] + [f"{ratio:.2f}"]
                line(size, f"`{method}`", str(s), f"{b[e]['head_rows']['mean']:.0f}", f"{rows:.0f}", f"{b[e]['mean']:.4f}", f"{b[c]['mean']:.4f}",
                     f"{of['mean']:.2f}", f"{b[e]['median']:.4f}", f"{b[c]['median']:.4f}", f"{of['median']:.2f}", f"{of['layer']:.2f}", *kl)
    print()


def render_rows_of_budgets(lengths):
    print("### How many rows a carried budget takes\nRows of a layer: the mean over its heads, in one step.\n")
    head("tokens", "method", "S", "mean", "layer: p50", "p99", "largest", "head: p50", "p99", "largest")
    for size, found in lengths.items():
        for m, (method, budget, s) in budget_methods().items():
            f = found["budgets"]["figures"][m]
            if budget == "carried":
                line(size, f"`{method}`", str(s), f"{f['head_rows']['mean']:.0f}", *(f"{f[which][key]:.0f}" for which in ("layer_rows", "head_rows")
                                                                                    for key in ("p50", "p99", "most")))
    print()


def render(args):
    lengths = collections.defaultdict(dict)
    names = sorted((name for name in os.listdir(args.results) if name.endswith(".json")), key=lambda name: (count(name.split("-")[0]), name))
    for name in names:
        size, part = name.removesuffix(".json").split("-")
        with open(os.path.join(args.results, name)) as f:
            lengths[size][part] = json.load(f)
    if not lengths:
        sys.exit(f"{args.results}: no figures; run scripts/measure/certified.py --tokens 8k first")
    print(next(iter(next(iter(lengths.values())).values()))["model"] + "\n")
    head("tokens", "part", "day, commit", "texts", "steps of a text", "first steps left out", "seeds", "scored tokens")
    for size, found in lengths.items():
        for part, f in found.items():
            counts = ["", "", "", str(f["score"])] if part == "tokens" else [str(f["positions"]), str(f["skip"]), str(f["seeds"]), ""]
            if part == "simulation":
                counts[2] = ""
            line(size, part, f"{f['date']}, {f['commit']}", f"{f['texts']} books" if f["kinds"] == "book" else f"{f['texts']} of each kind ({f['kinds']})", *counts)
    print()
    with_stated = {size: found for size, found in lengths.items() if "stated" in found}
    with_budgets = {size: found for size, found in lengths.items() if "budgets" in found}
    render_rows(with_stated)
    render_stated(with_stated, lambda e, d: d == 0.05, "Stated errors, delta 5%")
    render_stated(with_stated, lambda e, d: d > 0.05, "Stated errors, delta 10% and 20%")
    if with_budgets:
        render_budgets(with_budgets)
        render_rows_of_budgets(with_budgets)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sleigh", default="build/sleigh")
    p.add_argument("-m", "--model", default="models/tiny")
    p.add_argument("--tokens", nargs="+", default=["8k"], metavar="LENGTH")
    p.add_argument("--part", nargs="+", choices=PARTS, default=["stated", "budgets", "tokens"])
    p.add_argument("--kinds", default="needle,two-hop")
    p.add_argument("--books", metavar="FILE", help="JSONL of texts, instead of --kinds")
    p.add_argument("--texts", type=int, default=2, help="texts of each kind; with --books, its first lines")
    p.add_argument("--positions", type=int, default=44, help="decoded positions of a text")
    p.add_argument("--skip", type=int, default=12, help="first positions that do not count")
    p.add_argument("--seeds", type=int, default=2)
    p.add_argument("--score", type=int, default=96, help="tokens of a text that part `tokens` scores")
    p.add_argument("--seed", type=int, default=20261123, help="seed of the texts")
    p.add_argument("-s", "--first-seed", type=int, default=0, help="seed of the draws of part `tokens`")
    p.add_argument("-t", "--threads", type=int, default=0)
    p.add_argument("--results", default="results/certified", help="folder of the figures")
    p.add_argument("--render", action="store_true", help="only print the tables of the kept figures")
    a = p.parse_args()
    if not a.render:
        os.makedirs(a.results, exist_ok=True)
        for size in list(a.tokens):
            for part in a.part:
                print(f"{size}, {part}", file=sys.stderr)
                a.tokens = count(size)
                result = {**about(a, part), "figures": PARTS[part](a)}
                with open(os.path.join(a.results, f"{size}-{part}.json"), "w") as f:
                    json.dump(result, f, indent=1)
    render(a)


if __name__ == "__main__":
    main()
