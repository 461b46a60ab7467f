#!/usr/bin/env python3
"""Writes results/prose.md and its picture from the figures that scripts/measure/prose_results.py keeps.

    python3 scripts/measure/prose_report.py [--results results/prose] [-o results/prose.md] [--no-picture]

The page has a section for each part that is in the folder. Every figure comes from the folder, and so does every sentence that judges: a
claim holds if its 95% interval lies on the right side of the claimed figure, it does not hold if the interval lies on the wrong side, and
otherwise the books do not decide. The page includes the file notes.md of the folder, which people write.

Intervals are between books: Student's t of the means of the books. A ratio of two methods is paired by book."""
import argparse
import collections
import json
import math
import os
import re
import statistics
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from prose_results import METHODS
from reproduce import TABLE_28
from sleigh_runs import bytes_and_kl, draw, head_of_parts

TINY_PPS, TINY_IS = 0.70, 0.5  # results/attention-error.md: mean errors of the embedded model, divided by santa-prop's
SANTA_ERROR, _, SANTA_TOP1 = TABLE_28["fwe"]["santa-prop:S=128"]
SANTA_TOP1 /= 100
BUDGETS = (32, 64, 128, 256, 512)
SHARES = (0.03, 0.1, 0.15, 0.2, 0.3, 0.6)


# ---- intervals ----

def student(n):
    """The 97.5% quantile of Student's t with n - 1 degrees of freedom (Cornish-Fisher; error below 0.01 from n = 5)."""
    z, f = 1.959964, n - 1
    return z + (z**3 + z) / (4 * f) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * f**2) + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * f**3)


def interval(values):
    """Mean, and the ends of its 95% interval."""
    mean, n = statistics.fmean(values), len(values)
    half = student(n) * statistics.stdev(values) / math.sqrt(n) if n > 1 else math.inf
    return mean, mean - half, mean + half


def ratio(above, below):
    """Mean of `above` / mean of `below`, with the interval of the linear approximation; paired."""
    r, n = sum(above) / sum(below), len(above)
    half = student(n) * statistics.stdev(a - r * b for a, b in zip(above, below)) / math.sqrt(n) / statistics.fmean(below) if n > 1 else math.inf
    return r, r - half, r + half


def exp(i):
    return tuple(map(math.exp, i))


def at_most(i, claim):
    return "holds" if i[2] <= claim else "does not hold" if i[1] > claim else "not decided"


def fall(i):
    return "yes" if i[2] < 0 else "no" if i[1] > 0 else "not decided"


def at_least(i, claim):
    return "holds" if i[1] >= claim else "does not hold" if i[2] < claim else "not decided"


def show(i, digits=3, scale=1.0):
    """(0.5, 0.4, 0.6) -> '0.500 (0.400 to 0.600)'; digits < 0: significant digits."""
    def one(x):
        x *= scale
        return "-" if not math.isfinite(x) else f"{x:.{digits}f}" if digits >= 0 else f"{x:.{-digits}g}"
    return f"{one(i[0])} ({one(i[1])} to {one(i[2])})"


# ---- kept figures ----

class Kept:
    def __init__(self, folder):
        self.folder, self.parts = folder, {}
        for name in sorted(os.listdir(folder)):
            if name.endswith(".json"):
                with open(os.path.join(folder, name)) as f:
                    part = json.load(f)
                self.parts[part["part"]] = part

    def of(self, kind):
        """{length: [part, ...]} of a kind, the shortest length first."""
        found = collections.defaultdict(list)
        for name in sorted(self.parts):
            if name.split(":")[0] == kind:
                found[name.split(":")[1]].append(self.parts[name])
        return dict(sorted(found.items(), key=lambda item: tokens(item[0])))

    def one(self, kind):
        """{length: part}"""
        return {size: parts[0] for size, parts in self.of(kind).items()}

    def methods(self):
        """{length: [part, ...]} of the groups of methods, and {length: [row, ...]} of all their methods."""
        order = [f"methods:{size}:{group}" for size in self.of("methods") for group in METHODS]
        parts = {size: sorted(groups, key=lambda part: order.index(part["part"])) for size, groups in self.of("methods").items()}
        for size, groups in parts.items():
            if any(g["result"]["prompts"] != groups[0]["result"]["prompts"] for g in groups):
                sys.exit(f"{self.folder}: the groups of methods:{size} are of different books")
        return parts, {size: [row for g in groups for row in g["result"]["methods"]] for size, groups in parts.items()}

    def notes(self):
        path = os.path.join(self.folder, "notes.md")
        if not os.path.exists(path):
            return ""
        with open(path) as f:
            return f.read().strip() + "\n\nPeople wrote this section ([notes.md](prose/notes.md)); scripts wrote the rest of the page.\n\n"


def tokens(size):
    """'32k' -> 32768"""
    return int(size.removesuffix("k")) * (1024 if size.endswith("k") else 1)


def estimate(row, key):
    return row[key], row[f"{key}_low"], row[f"{key}_high"]


def error_of(row):
    return interval(row["by_prompt"]["l2"])


BUDGET = re.compile(r":(S|k|tokens|window|B|L|epsilon|bits|sink|top|base)=[^:+]+")


def curve_of(attn):
    """The curve of a method in a picture: methods of one curve differ only in a budget. 'santa-prop:S=32' -> 'santa-prop'."""
    return BUDGET.sub("", attn)


# ---- page ----

class Page:
    def __init__(self):
        self.out = []

    def say(self, text):
        self.out.append(text + "\n\n")

    def table(self, head, rows):
        self.out.append(f"| {' | '.join(head)} |\n|{'---|' * len(head)}\n")
        self.out.extend(f"| {' | '.join(row)} |\n" for row in rows)
        self.out.append("\n")

    def commands(self, parts):
        """The commands of the longest length. Those of the other lengths differ in the input only."""
        last = [part for part in parts if part["part"].split(":")[1] == parts[-1]["part"].split(":")[1]]
        also = "The commands of the other lengths differ in their input only:\n\n" if len(last) < len(parts) else ""
        commands = "\n".join(part["command"] for part in last)
        self.say(f"{also}```text\n{commands}\n```")


def answer(kept):
    """What two methods read and change at the longest length."""
    size, rows = list(kept.methods()[1].items())[-1]
    of = {row["attn"]: (row["step_bytes_share"], row["kl"]) for row in rows}
    return f"At {size} tokens, " + bytes_and_kl({name: of[name] for name in ("santa-is:S=256", "santa-prop:S=128") if name in of})


def begin(page, kept):
    parts = list(kept.parts.values())
    models = {part["model"] for part in parts if "-m models/prose" in part["command"]}
    made = collections.defaultdict(list)
    for part in parts:
        r = part["result"]
        made[f"{part['date']}, sleigh {r['version']}, commit {r['commit']}, {r['device']}"].append(part["part"])
    page.say("# A model that reads prose: every method on held-out books")
    page.say(head_of_parts(parts, "How much does each method change the next tokens of natural text?", answer(kept), "prose_results.py"))
    page.say("`scripts/measure/prose_report.py` wrote this page from the figures in `results/prose`, which `scripts/measure/prose_results.py` measured with the\n"
             "commands of each section. `build/prose-work` holds the inputs that `scripts/measure/prose_results.py --part inputs` makes from the corpus\n"
             "(`docs/corpus.md`). Intervals are 95%, between books (Student's t).")
    page.say("\n".join(f"- {how}: {', '.join(what)}" for how, what in made.items()))
    if len(models) > 1:
        page.say(f"The parts are of {len(models)} different models: run them again.")
    page.out.append(kept.notes())


# ---- claims ----

def claims_at(methods):
    """{claim: (where the figure comes from, interval as text, verdict)} of one length; methods: {name: row}."""
    prop, found = {s: methods.get(f"santa-prop:S={s}") for s in BUDGETS}, {}
    if prop[128]:
        error, last = error_of(prop[128]), prop[128]["layer_l2"][-1]
        found[f"santa-prop S=128: mean error of heads at most {SANTA_ERROR:g}"] = (
            "SANTA, Table 28 (FWE, last layer, 32k)", f"{show(error)}; last layer {last:.3f}", at_most(error, SANTA_ERROR))
    for s in BUDGETS[2:]:
        if prop[s]:
            top1 = estimate(prop[s], "top1")
            found[f"santa-prop S={s}: top-1 agreement at least {100 * SANTA_TOP1:g}%"] = (
                "SANTA, Table 28", show(top1, 1, 100) + "%", at_least(top1, SANTA_TOP1))

    def compare(name, s, than, key, claim, limit, source):
        above, below = methods.get(f"{name}:S={s}"), prop[than]
        if above and below:
            r = ratio(above["by_prompt"][key], below["by_prompt"][key])
            found[claim] = (source, show(r, 2), at_most(r, limit))

    for s in BUDGETS:
        compare("santa-pps", s, s, "l2", f"santa-pps S={s}: mean error at most {TINY_PPS:.2f} of santa-prop's with the same S", TINY_PPS,
                "embedded model")
    compare("santa-is", 256, 128, "l2", f"santa-is S=256: mean error at most {TINY_IS:.2f} of santa-prop's with S=128", TINY_IS, "embedded model")
    for s in BUDGETS:
        compare("santa-pps", s, s, "kl", f"santa-pps S={s}: KL at most that of santa-prop with the same S", 1, "-")
    compare("santa-is", 256, 128, "kl", "santa-is S=256: KL at most that of santa-prop with S=128", 1, "-")
    return found


def claims(page, kept):
    found = {size: claims_at({row["attn"]: row for row in rows}) for size, rows in kept.methods()[1].items()}
    if not any(found.values()):
        return
    page.say("## Claims of the SANTA paper and of the embedded model")
    page.say("A claim holds if its interval lies on the right side of the figure, and it does not hold if the interval lies on the wrong side. If the\n"
             "figure lies in the interval, the books do not decide. Errors are relative L2 errors of heads, over all layers. A ratio is paired by book.")
    sizes = list(found)
    rows = []
    for claim, (source, _, _) in found[sizes[-1]].items():
        rows.append([claim, source] + [": ".join(found[size].get(claim, ("", "-"))[1:]) for size in sizes])
    page.table(["claim", "figure from"] + [f"{size} tokens" for size in sizes], rows)


# ---- context ----

def history(page, kept):
    for size, part in kept.one("history").items():
        r = part["result"]
        rows, before, falls = [], None, []
        for name, nll in r["nll"].items():
            i = interval([a - b for a, b in zip(nll, before)]) if before else None
            rows.append([name, show(exp(interval(nll)), 2), show(i, 4) if i else "-", fall(i) if i else "-"])
            falls += [i] if i else []
            before = nll
        first, last = list(r["nll"])[0], list(r["nll"])[-1]
        page.say("## Does perplexity fall as the context grows?")
        page.say(f"The same tokens of {len(r['texts'])} held-out books are scored after different numbers of tokens before them: the last\n"
                 f"{r['n_score']} tokens of each window of {size} tokens ({r['scored']} tokens in all), dense attention.")
        page.table(["tokens before", "perplexity", "ln(perplexity / row above)", "perplexity falls"], rows)
        all_of_it = interval([b - a for a, b in zip(r["nll"][first], r["nll"][last])])
        if all(fall(i) == "yes" for i in falls):
            page.say(f"Perplexity falls in every row. From {first} to {last} tokens ln(perplexity) changes by {show(all_of_it, 4)}, so the model\n"
                     "uses distant tokens.")
        else:
            page.say(f"Perplexity does not fall in every row. From {first} to {last} tokens ln(perplexity) changes by {show(all_of_it, 4)}.")
        page.commands([part])


# ---- attention ----

PROFILE = {"keys_entropy": ("effective keys, exp(entropy)", 1, 1), "keys_squares": ("effective keys, 1 / sum p^2", 1, 1),
           "sink": ("first 4 tokens %", 1, 100), "window": ("last 256 tokens %", 1, 100), "distance_mean": ("mean distance", 0, 1),
           "distance_median": ("median distance", 0, 1), "rows_90": ("rows with 90% of the mass", 1, 1)}


def attention(page, kept):
    found = {name: kept.one(f"attention-{name}") for name in ("prose", "tiny")}
    if not any(found.values()):
        return
    page.say("## Attention of the two models")
    page.say("How dense attention spreads its mass p over the keys, in the decode steps of the scored tokens. A cell has the mean over the heads of a\n"
             "layer, and the lowest and the highest head. Distances are in tokens.")
    for name, title in (("prose", "the model of this page, on held-out books"), ("tiny", "the embedded model, on texts of its own kind")):
        for size, part in found[name].items():
            layers = collections.defaultdict(list)
            for head in part["result"]["attention"]:
                layers[head["layer"]].append(head)
            page.say(f"### {size} tokens, {len(part['result']['prompts'])} texts: {title}")
            body = []
            for layer, heads in layers.items():
                cells = []
                for key, (_, digits, scale) in PROFILE.items():
                    x = [scale * head[key] for head in heads]
                    cells.append(f"{statistics.fmean(x):.{digits}f} ({min(x):.{digits}f} to {max(x):.{digits}f})")
                body.append([str(layer), *cells])
            page.table(["layer", *(column for column, _, _ in PROFILE.values())], body)
            page.commands([part])


# ---- methods ----

def methods_tables(page, kept):
    parts, found = kept.methods()
    if not found:
        return
    page.say("## Next tokens by method")
    page.say("Every method decodes the same tokens of each book, token by token on its own cache, after a dense prefill. KL is the divergence of the\n"
             "method from dense attention in nats. Bytes are the KV bytes that a step reads, divided by those of dense attention.")
    for size, rows in found.items():
        page.say(f"### {size} tokens, {len(parts[size][0]['result']['prompts'])} books, {rows[0]['positions']} scored tokens")
        body = [["dense", show(estimate(rows[0], "ppl_answer_dense"), 2), "0", "0", "100", "100"]]
        for row in rows:
            body.append([row["attn"], show(estimate(row, "ppl_answer"), 2), show(estimate(row, "ln_ppl_ratio"), -3),
                         show(estimate(row, "kl"), -3), show(estimate(row, "top1"), 1, 100), f"{100 * row['step_bytes_share']:.1f}"])
        page.table(["method", "perplexity", "ln(perplexity / dense)", "KL", "top-1 agreement %", "bytes %"], body)
    page.commands([part for groups in parts.values() for part in groups])


def best(page, kept):
    """The method of lowest KL for each share of bytes."""
    found = kept.methods()[1]
    if not found:
        return
    page.say("## Lowest KL for a share of the bytes")
    page.say("Of all methods and budgets of this page that read at most this share of dense attention's KV bytes, the one of lowest mean KL.")
    body = []
    for share in SHARES:
        cells = []
        for rows in found.values():
            row = min((row for row in rows if row["step_bytes_share"] <= share), key=lambda row: row["kl"], default=None)
            cells.append(f"{row['attn']}: {row['kl']:.3g}, {100 * row['step_bytes_share']:.1f}%" if row else "-")
        body.append([f"{100 * share:g}%", *cells])
    page.table(["bytes at most"] + [f"{size}: method, KL, bytes" for size in found], body)


def curves(rows, value):
    """{curve: points} for a picture: bytes in percent, and value(row) with its interval."""
    found = collections.defaultdict(list)
    for row in rows:
        y = value(row)
        if y[0] > 0 and row["step_bytes_share"] < 0.995:
            found[curve_of(row["attn"])].append((100 * row["step_bytes_share"], y[0], max(y[1], y[0] / 10), y[2]))
    return {name: sorted(points) for name, points in found.items()}


def picture(page, kept, args):
    found = kept.methods()[1]
    if not found:
        return
    size, rows = list(found.items())[-1]
    path = os.path.splitext(args.output)[0] + ".svg"
    if args.picture:
        axes, x = "log-x log-y lines", "KV bytes read, % of dense attention"
        draw(args.sleigh, path, f"{size} tokens of held-out books",
             [("next tokens", x, "KL from dense attention, nats", axes, curves(rows, lambda row: estimate(row, "kl"))),
              ("outputs of heads", x, "mean relative L2 error", axes, curves(rows, error_of))])
    page.say(f"![KL and errors of heads against bytes read, all methods, {size}]({os.path.basename(path)})")
    page.say(f"The picture shows the figures at {size} tokens. Budgets with which a method reads as much as dense attention are not shown.")


def errors(page, kept):
    found = {size: {row["attn"]: row for row in rows} for size, rows in kept.methods()[1].items()}
    if not found:
        return
    sizes = list(found)
    page.say("## Errors of heads")
    page.say("Relative L2 error of a head's output on the states of the dense run: all layers, heads and scored positions of all books, from the\n"
             "commands above. A cell has the mean and the median.")
    body = []
    for attn, row in found[sizes[-1]].items():
        cells = [found[size].get(attn) for size in sizes]
        body.append([attn] + [f"{cell['l2']:.4f}; {cell['l2_median']:.4f}" if cell else "-" for cell in cells] +
                    [f"{row['layer_l2'][-1]:.4f}", f"{100 * row['bytes_share']:.1f}"])
    page.table(["method"] + sizes + [f"last layer, {sizes[-1]}: mean", f"bytes %, {sizes[-1]}"], body)


# ---- questions ----

def questions(page, kept):
    for kind, title in (("needle", "Needles in prose"), ("two-hop", "Two-hop questions in prose")):
        found = kept.one(kind)
        if not found:
            continue
        sizes = list(found)
        rows = {size: {r["attn"]: r for r in part["result"]["rows"] if r["task"] != "all" or len(part["result"]["rows"]) == 1}
                for size, part in found.items()}
        page.say(f"## {title}")
        page.say(f"Right answers in percent, with Wilson's interval, to {found[sizes[-1]]['result']['samples']} questions of each length. Facts stand between\n"
                 "sentences of held-out books. The method decodes the question and the answer (set-up B).")
        body = []
        for attn, row in rows[sizes[-1]].items():
            scores = [show(tuple(rows[size][attn][k] for k in ("score", "score_low", "score_high")), 1, 100) for size in sizes]
            gap = show(tuple(row[k] for k in ("difference", "difference_low", "difference_high")), 1, 100) if attn != "dense" else "-"
            body.append([attn, *scores, gap, f"{100 * row['kv_bytes_share']:.1f}"])
        page.table(["method"] + sizes + [f"points more than dense, {sizes[-1]}", f"bytes %, {sizes[-1]}"], body)
        page.commands(list(found.values()))


# ---- continuations ----

def quantile(values, share):
    """Linear between order statistics."""
    ordered, at = sorted(values), share * (len(values) - 1)
    i = min(int(at), len(values) - 2)
    return ordered[i] + (at - i) * (ordered[i + 1] - ordered[i])


def continuations(page, kept):
    found = kept.of("continuations")
    if not found:
        return
    first = next(iter(found.values()))[0]["result"]
    page.say(f"## Continuations at temperature {first['temp']:g}")
    page.say("Each method continues each book from its own tokens, without top-k, top-p and min-p. Dense attention scores the text: the table has\n"
             "the distribution of the text's perplexity over books and seeds. The ratio to the perplexity of dense attention's own text is paired by\n"
             "book. Methods share their random numbers with dense attention, so a text is equal up to the first token that differs.")
    for size, parts in found.items():
        results = [part["result"] for part in parts]
        seeds = ", ".join(str(r["seed"]) for r in results)
        page.say(f"### {size} tokens, {len(results[0]['prompts'])} books, seeds {seeds}")
        dense = [r["dense_by_prompt"]["text_nll"] for r in results]

        def row(name, nll, equal, share):
            of_book = [statistics.fmean(a - b for a, b in zip(x, y)) for x, y in zip(zip(*nll), zip(*dense))]
            texts = [math.exp(x) for r in nll for x in r]
            return [name, show(exp(interval([statistics.fmean(x) for x in zip(*nll)])), 2), *(f"{quantile(texts, q):.2f}" for q in (0.1, 0.5, 0.9)),
                    show(exp(interval(of_book)), 3) if nll is not dense else "-", equal, share]

        body = [row("dense", dense, "-", "100")]
        for i, method in enumerate(results[0]["methods"]):
            nll = [r["methods"][i]["by_prompt"]["text_nll"] for r in results]
            equal = statistics.fmean(x for r in results for x in r["methods"][i]["by_prompt"]["agreement"])
            body.append(row(method["attn"], nll, f"{100 * equal:.0f}", f"{100 * method['kv_bytes_share']:.1f}"))
        page.table(["method", "perplexity under dense", "10%", "median", "90%", "divided by dense's", "equal tokens %", "bytes %"], body)
    page.commands([part for parts in found.values() for part in parts])


# ---- the page ----

def report(kept, args):
    page = Page()
    begin(page, kept)
    claims(page, kept)
    picture(page, kept, args)
    history(page, kept)
    attention(page, kept)
    best(page, kept)
    methods_tables(page, kept)
    errors(page, kept)
    questions(page, kept)
    continuations(page, kept)
    return "".join(page.out).rstrip() + "\n"


# ---- self-test ----

def synthetic_method(attn, factor, share, n):
    """A method whose errors and KL are `factor` times those of factor 1; books differ by 10%."""
    of_book = [1 + 0.1 * (i % 3 - 1) for i in range(n)]
    row = {"attn": attn, "positions": 100, "step_bytes_share": share, "bytes_share": share, "kv_bytes_share": share, "layer_l2": [0.1 * factor] * 2,
           "l2_median": 0.05 * factor, "l2": 0.1 * factor, "top1": 0.95, "top1_low": 0.94, "top1_high": 0.955}
    for key, at in (("kl", 0.01 * factor), ("ln_ppl_ratio", 0.001), ("ppl_answer", 20.0), ("ppl_answer_dense", 19.0)):
        row |= {key: at, f"{key}_low": 0.99 * at, f"{key}_high": 1.01 * at}
    row["by_prompt"] = {"kl": [0.01 * factor * x for x in of_book], "l2": [0.1 * factor * x for x in of_book],
                        "text_nll": [2.0 + 0.1 * x for x in of_book], "agreement": [0.5] * n}
    return row


def synthetic(n=9):
    """Parts of a folder in which santa-pps has half of santa-prop's errors and santa-is S=256 six tenths."""
    methods = [synthetic_method(f"{name}:S={s}", factor * 128 / s, 0.5 + s / 32768, n)
               for name, factor in (("santa-prop", 1), ("santa-pps", 0.5), ("santa-is", 1.2)) for s in BUDGETS]
    of = {"version": "0", "commit": "c", "device": "d", "prompts": [f"book-{i}" for i in range(n)], "seed": 1, "temp": 0.8}
    heads = [{"layer": layer, "head": head, **{key: 1.0 + head for key in PROFILE}} for layer in range(2) for head in range(2)]
    score = {"task": "needle", "score": 0.5, "score_low": 0.4, "score_high": 0.6, "difference": -0.25, "difference_low": -0.5, "difference_high": 0,
             "kv_bytes_share": 1}
    results = {
        "methods:4k:pps": {**of, "methods": methods},
        "methods:32k:prop": {**of, "methods": methods[:5]},
        "methods:32k:pps": {**of, "methods": methods[5:]},
        "continuations:32k:1": {**of, "methods": methods, "dense_by_prompt": {"text_nll": [2.0] * n}},
        "attention-tiny:32k": {**of, "attention": heads},
        "needle:32k": {**of, "samples": 8, "rows": [score | {"attn": attn} for attn in ("dense", "santa-prop:S=32")]},
        "history:32k": {**of, "texts": of["prompts"], "n_score": 4096, "scored": 9,
                        "nll": {"1k": [3.0 + 0.1 * i for i in range(n)], "4k": [2.9 + 0.1 * i for i in range(n)], "all": [2.9 + 0.1 * i for i in range(n)]}},
    }
    return {name: {"part": name, "command": f"build/sleigh {name}", "model": "m", "date": "2026-01-01", "result": r} for name, r in results.items()}


def self_test():
    def expect(text, line):
        if line not in text:
            sys.exit(f"prose_report: self-test: expected {line!r} in\n{text}")

    if not abs(student(5) - 2.776) < 0.02 or not abs(student(24) - 2.069) < 0.001:
        sys.exit("prose_report: self-test: quantiles of Student's distribution")
    if [at_most((1, 0.9, 1.1), x) for x in (1.2, 1, 0.8)] != ["holds", "not decided", "does not hold"]:
        sys.exit("prose_report: self-test: verdicts")
    if curve_of("bernoulli-group:B=8+santa-prop:S=128") != "bernoulli-group+santa-prop" or curve_of("vattention:epsilon=0.2:predictor=quest") != \
            "vattention:predictor=quest":
        sys.exit("prose_report: self-test: curves")
    with tempfile.TemporaryDirectory() as folder:
        for name, part in synthetic().items():
            with open(os.path.join(folder, name.replace(":", "-") + ".json"), "w") as f:
                json.dump(part, f)
        with open(os.path.join(folder, "notes.md"), "w") as f:
            f.write("What people write.\n")
        text = report(Kept(folder), argparse.Namespace(picture=False, output="prose.md"))
    expect(text, "What people write.")
    expect(text, "| santa-prop S=128: mean error of heads at most 0.131 | SANTA, Table 28 (FWE, last layer, 32k) | 0.100 (0.093 to 0.107); last layer 0.100: holds | ")
    expect(text, "| santa-prop S=512: top-1 agreement at least 96% | SANTA, Table 28 | 95.0 (94.0 to 95.5)%: does not hold | ")
    expect(text, "| santa-pps S=64: mean error at most 0.70 of santa-prop's with the same S | embedded model | 0.50 (0.50 to 0.50): holds | ")
    expect(text, "| santa-is S=256: mean error at most 0.50 of santa-prop's with S=128 | embedded model | 0.60 (0.60 to 0.60): does not hold | ")
    expect(text, "| 4k | 27.11 (21.97 to 33.46) | -0.1000 (-0.1000 to -0.1000) | yes |")
    expect(text, "| all | 27.11 (21.97 to 33.46) | 0.0000 (0.0000 to 0.0000) | not decided |")
    expect(text, "Perplexity does not fall in every row.")
    expect(text, "| 60% | santa-pps:S=512: 0.00125, 51.6% |")
    expect(text, "| 1 | 1.5 (1.0 to 2.0) | ")
    expect(text, "| santa-prop:S=32 | 50.0 (40.0 to 60.0) | -25.0 (-50.0 to 0.0) | 100.0 |")
    expect(text, "| dense | 7.39 (7.39 to 7.39) | 7.39 | 7.39 | 7.39 | - | - | 100 |")
    expect(text, "| santa-prop:S=32 | 8.17 (8.11 to 8.22) | ")


# ---- all ----

def run_report(doc, name, maker, kept_in, report, self_test):
    """The command line of a script that writes results/NAME.md from the kept figures of results/NAME. maker: the script that
    keeps the figures. kept_in: makes the figures of a folder, with their parts in .parts. report: makes the text of them."""
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sleigh", default="build/sleigh")
    p.add_argument("--results", default=f"results/{name}")
    p.add_argument("-o", "--output", default=f"results/{name}.md")
    p.add_argument("--picture", action=argparse.BooleanOptionalAction, default=True)
    p.add_argument("--self-test", action="store_true", help="check a page of invented figures")
    a = p.parse_args()
    if a.self_test:
        return self_test()
    kept = kept_in(a.results)
    if not kept.parts:
        sys.exit(f"{a.results}: no kept figures; scripts/{maker} makes them")
    text = report(kept, a)
    with open(a.output, "w") as f:
        f.write(text)


if __name__ == "__main__":
    run_report(__doc__, "prose", "prose_results.py", Kept, report, self_test)
