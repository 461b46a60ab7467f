#!/usr/bin/env python3
"""Writes results/sparse-prefill.md and its picture from the figures that scripts/measure/sparse_prefill.py keeps.

    python3 scripts/measure/sparse_prefill_report.py [--results results/sparse-prefill] [-o results/sparse-prefill.md] [--no-picture]

The page has a section for each part that is in the folder; a part that is not there leaves no trace. Tables of a GPU come from the parts
`kernels` and `dense-kernel`, and from peers.jsonl (the output of `scripts/measure/bench_peers.py prefill` on the same GPU). The page includes the file
notes.md of the folder, which people write."""
import argparse
import collections
import json
import os
import statistics
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from prose_report import Page, run_report, show, tokens
from sparse_prefill import TIMED
from sleigh_runs import draw, head_of_parts

LOSSES = (0.0001, 0.001, 0.01)  # nats
POINT = 0.01                    # of the score
MARGIN = 0.05                   # of the mass: an estimated CRA that is so much above the measured one is too high
# (part, model, what is asked)
QUESTIONS = (("score-tiny-facts", "tiny", "needles and two-hop questions, up to the fact"),
             ("tuned-facts", "tiny", "other needles and two-hop questions, up to the fact"),
             ("needle-facts", "prose", "needles in books, up to the fact"), ("two-hop-facts", "prose", "two-hop questions in books, up to the fact"),
             ("score-tiny", "tiny", "needles, two-hop questions and frequent words"), ("needle", "prose", "needles in books"),
             ("two-hop", "prose", "two-hop questions in books"))
MODELS = {"prose": "the prose model, held-out books", "tiny": "the embedded model, questions of its own kind"}
# The parameters that tables show, with the defaults that names of methods leave out.
DEFAULTS = {
    "sample": {"alpha_c": "0.95", "alpha_s": "0.95", "chunk_n": "1", "repair": "0"},
    "vertical-slash": {"columns": "1000", "slashes": "6096"},
    "streaming": {"window": "2044"},
    "xattention": {"threshold": "0.9"},
    "threshold": {"lambda": "1e-06"},
    "oracle": {"density": "0.1"},
    "bigbird": {"local": "0.08", "global": "0.08"},
    "hash-sparse": {"buckets": "16"},
    "hyperattention": {"dense": "4096"},
}
FAMILIES = tuple(DEFAULTS)
NAMES = ("dense", *TIMED)  # of times to the first token
PAPERS_ALPHA = ("sample:alpha_c=0.95", "sample:alpha_c=0.95:alpha_s=0.95", "sample")  # 0.95 and 0.95, one chunk, as methods are named


# ---- methods ----

def family(method):
    return method.split(":")[0]


def params(method):
    """'sample:alpha_c=0.9' -> {'alpha_c': '0.9', 'alpha_s': '0.95', 'chunk_n': '1', 'repair': '0'}"""
    defaults, given = DEFAULTS[family(method)], dict(word.split("=") for word in method.split(":")[1:])
    return {k: given.get(k, x) for k, x in defaults.items()}


def label(method):
    """'sample:alpha_c=0.9' -> 'sample 0.9, 0.95', 'streaming:sink=4' -> 'streaming, window 2044'"""
    p = params(method)
    if family(method) == "sample":
        return f"sample {p['alpha_c']}, {p['alpha_s']}" + (f", {p['chunk_n']} chunks" if p["chunk_n"] != "1" else "") + (
            f", repair {p['repair']}" if p["repair"] != "0" else "")
    return ", ".join([family(method), *(f"{k} {v}" for k, v in p.items())])


def curve(method):
    """The curve of a method in the picture, whose points have different densities. None: no curve."""
    p = params(method)
    if family(method) != "sample":
        return family(method)
    return "sample" if p["alpha_c"] == p["alpha_s"] and p["chunk_n"] == "1" and p["repair"] == "0" else None


def order(row):
    return FAMILIES.index(family(row["method"])), row["prefill_density"] or 0


# ---- kept figures ----

class Kept:
    def __init__(self, folder):
        self.folder, self.parts, self.peers = folder, {}, []
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name)) as f:
                if name.endswith(".json"):
                    part = json.load(f)
                    self.parts[part["part"]] = part
                elif name == "peers.jsonl":
                    self.peers = [json.loads(line) for line in f]

    def of(self, kind):
        """{length: [part, ...]} of a kind, the shortest length first, without the group `timed`, which has a section of its own."""
        found = collections.defaultdict(list)
        for name, part in self.parts.items():
            if name.split(":")[0] == kind and not name.endswith(":timed"):
                found[name.split(":")[1]].append(part)
        return dict(sorted(found.items(), key=lambda item: tokens(item[0])))

    def methods(self, kind):
        """{length: rows} of next tokens, by family and density. Groups of one length must have the same prompts. Of a method in two groups, the first."""
        out = {}
        for size, parts in self.of(kind).items():
            if any(p["result"]["prompts"] != parts[0]["result"]["prompts"] for p in parts):
                sys.exit(f"{self.folder}: the groups of {kind}:{size} have different prompts")
            rows = {label(row["method"]): row for p in reversed(parts) for row in p["result"]["methods"]}
            out[size] = sorted(rows.values(), key=order)
        return out

    def scores(self, kind):
        """{length: {group: {method: {task: row}}}}"""
        out = {}
        for size, parts in self.of(kind).items():
            out[size] = {}
            for part in parts:
                of_method = out[size][part["part"].split(":")[2]] = {}
                for row in part["result"]["rows"]:
                    of_method.setdefault(row["method"], {})[row["task"]] = row
        return out

    def notes(self):
        path = os.path.join(self.folder, "notes.md")
        if not os.path.exists(path):
            return ""
        with open(path) as f:
            return f.read().strip() + "\n\nPeople wrote this section ([notes.md](sparse-prefill/notes.md)); scripts wrote the rest of the page.\n\n"


def heads(row, key):
    return [x for layer in row["heads"][key] for x in layer if x is not None] if row["heads"] else []


def percent(x, digits=1):
    return "-" if x is None else f"{100 * x:.{digits}f}"


def number(x, digits=3):
    return "-" if x is None else f"{x:.{digits}g}"


def nats(row):
    return show((row["kl"], row["kl_low"], row["kl_high"]), -3)


def commands(page, parts):
    page.say("```text\n" + "\n".join(part["command"] for part in parts) + "\n```")


# ---- sections ----

def answer(kept):
    """The least density for a small KL, at the longest prompts."""
    of_size = kept.methods("tokens-prose") or kept.methods("tokens-tiny")
    if not of_size:
        return "The tables have the figures."
    size, rows = list(of_size.items())[-1]
    found = {name: least_density([row for row in rows if family(row["method"]) == name], lambda row: row["kl"] <= LOSSES[-1])
             for name in FAMILIES[:4]}
    words = [f"{percent(row['prefill_density'])}% with `{name}`" for name, row in found.items() if row]
    return f"At {size} tokens, a KL of {LOSSES[-1]:g} nats needs this share of the blocks: {', '.join(words) or 'no setting reaches it'}."


def begin(page, kept):
    made = collections.defaultdict(list)
    for part in kept.parts.values():
        r = part["result"]
        made[f"{part['date']}, sleigh {r['version']}, commit {r['commit']}, {r['device']}"].append(part["part"])
    page.say("# Sparse prefill: score, error and density of every method")
    page.say(head_of_parts(list(kept.parts.values()), "What does a prefill that skips blocks of keys change in the answers?", answer(kept),
                           "sparse_prefill.py"))
    page.say("A sparse prefill computes the attention of a prompt for some blocks of keys only. This page shows what that changes in the answers, for\n"
             "the methods of [methods.md](../docs/methods.md#masks-for-prefill). `scripts/measure/sparse_prefill_report.py` wrote the page from the figures in\n"
             "`results/sparse-prefill`, which `scripts/measure/sparse_prefill.py` measured with the commands of each section.")
    page.out.append(kept.notes())
    page.say("## How to read the tables")
    page.say("- Every method prefills the whole prompt, the question included. Dense attention decodes the answer. So a difference comes from the\n"
             "  prefill alone.\n"
             "- A block has 128 queries and 128 keys of one query head. **Density** is the number of blocks that a method visits, divided by those of\n"
             "  dense attention, over all layers and heads. `threshold` computes the scores of all blocks; its density counts the blocks of V.\n"
             "  `oracle` computes everything first: it shows what the best mask of a size keeps, and saves no time.\n"
             "- `sample A, B, N chunks` is `sample` with alpha_c = A, alpha_s = B and chunk_n = N (without N: 1),\n"
             "  for each segment of 32,768 tokens.\n"
             "- **CRA** is the least share of a query's attention mass that a mask keeps, over queries. The estimated CRA takes the least over the rows\n"
             "  that the method samples, the measured CRA the least over rows at equal distances (`--prefill-check`). The least over all layers and\n"
             "  heads says what the worst head does. The mean over heads is the mean of the least shares of the heads.\n"
             "- The **error** of a checked row is |output - dense output| / |dense output| of a head, on the queries, keys and values of the sparse run.\n"
             "- **Up to the fact**: the prompt has the beginning of the right answer, so that the next token is the first one of the fact. The last row of\n"
             "  the sparse prefill must find it. In the other questions the first token of the answer is a blank or a common word, and dense attention\n"
             "  then decodes the fact from keys and values that the mask did not remove.\n"
             "- **KL** is the divergence of the probabilities of the next token from those after dense prefill, in nats. Its interval is 95%. With fewer\n"
             "  than 8 prompts it takes positions as independent.")
    page.say("Measured on:\n\n" + "\n".join(f"- {how}: {', '.join(what)}" for how, what in made.items()))


def least_density(rows, passes):
    """The row of least density that passes; None."""
    return min((row for row in rows if passes(row)), key=lambda row: row["prefill_density"], default=None)


def summary(page, kept):
    found = kept.methods("tokens-prose")
    if not found:
        return
    page.say(f"## The least density for a given KL: {MODELS['prose']}")
    page.say("Of the settings of a method that are in the tables below, the one of least density whose mean KL is at most the limit. `-`: no setting.\n"
             "`threshold` does (1 + density) / 2 of the work of dense attention, because it computes all scores.")
    body = []
    for name in FAMILIES:
        for size, rows in found.items():
            of_family = [row for row in rows if family(row["method"]) == name]
            if of_family:
                cells = [least_density(of_family, lambda row, limit=limit: row["kl"] <= limit) for limit in LOSSES]
                body.append([f"`{name}`", size] + [f"{percent(row['prefill_density'])}% ({label(row['method'])})" if row else "-" for row in cells])
    page.table(["method", "tokens"] + [f"KL at most {limit:g}" for limit in LOSSES], body)


def kept_scores(page, kept):
    body = []
    for kind, _, title in QUESTIONS:
        for size, groups in kept.scores(kind).items():
            rows = [of_task["all"] for of_method in groups.values() for method, of_task in of_method.items() if method != "dense"]
            for name in FAMILIES:
                of_family = [row for row in rows if family(row["method"]) == name]
                if of_family:
                    row = least_density(of_family, lambda row: row["difference"] >= 0)
                    body.append([title, size, f"`{name}`", str(of_family[0]["samples"]),
                                 f"{percent(row['prefill_density'])}% ({label(row['method'])})" if row else "-"])
    if body:
        page.say("## The least density that keeps the score")
        page.say("Of the settings that were measured, the one of least density whose score is not below that of dense prefill on the same questions. The\n"
                 "questions are few, so a loss of some points can stay hidden: the tables of answers have the intervals.")
        page.table(["questions about", "tokens", "method", "questions", "least density"], body)


def choice_of(rows):
    """The row of a table of tune that has the choice: the last one, after the candidates."""
    return next(row for row in rows if row["result"] == "chosen")


def tuned_answers(kept, size, choice):
    """A sentence about the choice and one about the least density, on the questions of tuned-facts. ''."""
    of_method = kept.scores("tuned-facts").get(size, {}).get("tuned", {})
    rows = {method: of_task["all"] for method, of_task in of_method.items() if method != "dense"}
    if choice not in rows:
        return ""
    row = rows[choice]
    gap = show(tuple(row[k] for k in ("difference", "difference_low", "difference_high")), 1, 100)
    text = (f"On {row['samples']} other questions, each answered after both prefills, it visits {percent(row['prefill_density'])}% of the blocks, and the\n"
            f"difference to dense prefill is {gap} points.")
    least = least_density(rows.values(), lambda row: row["difference"] >= -POINT)
    if least:
        text += (f" Of the settings that answered them,\n{label(least['method'])} has the least density of those that lose at most one point:"
                 f" {percent(least['prefill_density'])}%.")
    return text


def tuned(page, kept):
    for size, parts in kept.of("tune").items():
        rows = parts[0]["result"]["rows"]
        choice, dense = choice_of(rows), rows[0]
        page.say(f"## What tune chooses at {size}: the embedded model")
        page.say(f"`sleigh tune` takes the setting with the least work that loses at most one point of the score of dense prefill, on {dense['n']} needles and two-hop\n"
                 f"questions up to the fact. Its choice is **{choice['setting'] if choice is dense else label(choice['setting'])}**: {percent(choice['density'])}% of the blocks, a loss of\n"
                 f"{100 * choice['loss']:.1f} points. {tuned_answers(kept, size, choice['setting'])}".rstrip())
        page.table(["method", "density %", "work %", "questions", "score %", "loss, points", "prefill, ms", "result"],
                   [["dense" if row["setting"] == "dense" else label(row["setting"]), percent(row["density"]), percent(row["work"]), str(row["n"]),
                     percent(row["x"]), f"{100 * row['loss']:.1f}", f"{row['prefill_ms']:.1f}", row["result"] or "-"] for row in rows])
        commands(page, parts)


def right_answers(kept, size, method):
    """The score of needles and of two-hop questions in books after this prefill; '-' without the part of this length."""
    found = []
    for kind in ("needle-facts", "two-hop-facts"):
        groups = kept.scores(kind).get(size, {}).values()
        found += [percent(of_method[method]["all"]["score"]) for of_method in groups if method in of_method][:1]
    return "; ".join(found) or "-"


def lost(kept, size, name, row):
    """Density, KL and answers after this prefill."""
    if not row:
        return ["-"] * 3
    return [*(["100", "0"] if name == "dense" else [percent(row["prefill_density"]), nats(row)]), right_answers(kept, size, row["method"])]


def first_token(page, kept):
    """Times to the first token beside what the masks lose, of the groups `timed` and of ttft:LEN:NAME."""
    timed = {name.split(":")[1]: part for name, part in kept.parts.items() if name.endswith(":timed")}
    times = {size: {part["part"].split(":")[2]: part["result"] for part in parts} for size, parts in kept.of("ttft").items()}
    if not timed:
        return
    page.say("## Time to the first token, and what is lost")
    page.say("Left: the prose model on whole books. Its times are of two programs: dense prefill has the median of 5 warm runs of `bench -p`, and a mask the\n"
             "mean time to the first token of the books, once each, in `compare`, whose dense time contains what a first run loads. Right:\n"
             "the shape of Llama-3.1-8B with random weights, one segment. Random weights have no density of their own, so a window (`streaming`) has\n"
             "the density that the mask has on the books of this length; at 128k, beyond the context of the prose model, it has that of 64k. The window\n"
             "has no estimator, which takes 1.7% of dense attention's time at 32k and 0.4% at 128k with `sample`, 4.7% and 1.1% with `vertical-slash`\n"
             "([h200-prefill.md](h200-prefill.md#making-a-mask)). Answers: needles; two-hop questions, in percent, of the sections below.")
    dense, body = kept.parts.get("dense-prose"), []
    of_size = {tokens(str(n)): ms for n, ms in (dense["result"]["ms"] if dense else {}).items()}
    for size in sorted({*timed, *times}, key=tokens):
        rows = timed[size]["result"]["methods"] if size in timed else [None] * len(NAMES)
        of_8b, dense_ms = times.get(size, {}), min((ms for n, ms in of_size.items() if 0 <= tokens(size) - n < 1024), default=None)
        for name, row in zip(NAMES, rows):
            ms, shape = dense_ms if name == "dense" else row and row["ttft_ms"], of_8b.get(name)
            body.append([size, "dense" if name == "dense" else label(TIMED[name]), *lost(kept, size, name, row),
                         f"{ms:.1f}" if ms else "-", f"{ms / dense_ms:.2f}" if ms and dense_ms else "-",
                         *([f"{shape['ms'] / 1e3:.2f}", f"{shape['ms'] / of_8b['dense']['ms']:.2f}"] if shape else ["-", "-"])])
    page.table(["tokens", "`--attn-prefill`", "density %", "KL", "answers %", "prose model, ms", "/ dense", "8B shape, s", "/ dense (8B)"], body)
    commands(page, [*sorted(timed.values(), key=lambda part: tokens(part["part"].split(":")[1])), *([dense] if dense else ()),
                    *(part for parts in kept.of("ttft").values() for part in parts)])


def curves(rows, value):
    """{curve: points} for a picture: density in percent, and value(row) where it is above 0."""
    out = collections.defaultdict(list)
    for row in rows:
        y = value(row)
        if curve(row["method"]) and y > 0:
            out[curve(row["method"])].append((100 * row["prefill_density"], y))
    return {name: sorted(points) for name, points in out.items()}


def mean_cra(row):
    return 100 * statistics.fmean(heads(row, "cra") or [0])


def panels_of(model, found):
    """KL of the longest prompts, if it is the prose model (the tokens of the other model are few), and measured CRA of the longest prompts
    with checked rows."""
    name, x, panels = "prose model" if model == "prose" else "embedded model", "blocks visited, % of dense attention", []
    checked = [size for size, rows in found.items() if any(heads(row, "cra") for row in rows)]
    if model == "prose":
        size = max(found, key=tokens)
        panels.append((f"{name}, {size} tokens", x, "KL from dense prefill, nats", "log-y lines", curves(found[size], lambda row: row["kl"])))
    if checked:
        size = max(checked, key=lambda size: (len(found[size]), tokens(size)))
        panels.append((f"{name}, {size} tokens", x, "measured CRA, mean over heads, %", "lines", curves(found[size], mean_cra)))
    return panels


def picture(page, kept, args):
    panels = [panel for model in MODELS if (found := kept.methods(f"tokens-{model}")) for panel in panels_of(model, found)]
    if not panels:
        return
    path = os.path.splitext(args.output)[0] + ".svg"
    if args.picture:
        draw(args.sleigh, path, "after a sparse prefill", panels)
    page.say(f"![KL and CRA against density of every method]({os.path.basename(path)})")
    page.say("`sample` is drawn with alpha_c = alpha_s and one chunk.")


def next_tokens(page, kept):
    for model, title in MODELS.items():
        for size, rows in kept.methods(f"tokens-{model}").items():
            parts = kept.of(f"tokens-{model}")[size]
            r = parts[0]["result"]
            page.say(f"## Next tokens at {size}: {title}")
            page.say(f"{len(r['prompts'])} prompts of {min(r['n_prompt'])} to {max(r['n_prompt'])} tokens, {rows[0]['positions']} scored tokens; perplexity after dense\n"
                     f"prefill {rows[0]['ppl_answer_dense']:.2f}.")
            body = [[label(row["method"]), percent(row["prefill_density"]), nats(row),
                     show((row["ln_ppl_ratio"], row["ln_ppl_ratio_low"], row["ln_ppl_ratio_high"]), -2), percent(row["top1"]),
                     percent(row["prefill_cra"]), number(row["prefill_error"]), number(row["prefill_error_max"])] for row in rows]
            page.table(["method", "density %", "KL", "ln(perplexity / dense)", "top-1 agreement %", "measured CRA %", "mean error of checked rows",
                        "largest"], body)
            commands(page, parts)


def estimates(page, kept):
    body = []
    for model in MODELS:
        for size, rows in kept.methods(f"tokens-{model}").items():
            for row in rows:
                estimated, measured = heads(row, "kept"), heads(row, "cra")
                if not estimated or not measured:
                    continue
                above = sum(a > b + MARGIN for a, b in zip(estimated, measured))
                body.append([model, size, label(row["method"]), percent(row["prefill_density"]), percent(row["prefill_kept"]),
                             percent(row["prefill_cra"]), percent(statistics.fmean(estimated)), percent(statistics.fmean(measured)),
                             f"{above} of {len(estimated)}", percent(max(a - b for a, b in zip(estimated, measured)))])
    if not body:
        return
    page.say("## Estimated and measured CRA")
    page.say("The methods that sample rows. The estimate takes the least over all sampled rows: 128 for each chunk, 64 for `vertical-slash`. They stand at\n"
             "the ends of the chunks. The measurement takes the least over the rows of `--prefill-check`, which are fewer and stand at equal distances.\n"
             f"So the estimate can be below the measurement. A head counts as too high if its estimate is more than {100 * MARGIN:g} points above its measurement.\n"
             "The commands are those of the next tokens.")
    page.table(["model", "tokens", "method", "density %", "estimated CRA %", "measured %", "mean over heads: estimated %", "measured %",
                "heads: estimate too high", "largest excess, points"], body)


def densities(page, kept):
    """The spread over heads, of `sample` with the paper's alpha."""
    body, of_layers = [], []
    for model in MODELS:
        for size, rows in kept.methods(f"tokens-{model}").items():
            for row in rows:
                found = sorted(heads(row, "density"))
                if found and row["method"] in PAPERS_ALPHA:
                    layers = [statistics.fmean(layer) for layer in row["heads"]["density"]]
                    of_layers += [[MODELS[model].split(",")[0], size, str(i), ", ".join(percent(x) for x in sorted(layer))]
                                  for i, layer in enumerate(row["heads"]["density"])]
                    body.append([MODELS[model].split(",")[0], size, percent(row["prefill_density"]), percent(found[0]), percent(statistics.median(found)),
                                 percent(found[-1]), percent(min(layers)), percent(max(layers))])
    if body:
        page.say("## Density of heads and layers")
        page.say(f"`sample` with the paper's setting ({label(PAPERS_ALPHA[0])}), in percent of the blocks of a head. The commands are those of the next tokens.")
        page.table(["model", "tokens", "all heads", "least of a head", "median head", "largest of a head", "least mean of a layer", "largest mean of a layer"],
                   body)
        page.say("The heads of each layer, from the least to the largest:")
        page.table(["model", "tokens", "layer", "heads"], of_layers)


def cells_of(rows, value):
    """{(alpha, chunk_n): value(row)} of `sample` with alpha_c = alpha_s."""
    out = {}
    for row in rows:
        p = params(row["method"])
        if family(row["method"]) == "sample" and p["alpha_c"] == p["alpha_s"] and p["repair"] == "0":
            out[p["alpha_c"], p["chunk_n"]] = value(row)
    return out


def chunk_table(page, cells, model, size, what):
    alphas = sorted({a for a, n in cells if n != "1"}, key=float)
    chunks = sorted({n for _, n in cells}, key=int)
    if not alphas:
        return
    page.say(f"### {size} tokens, the {'prose' if model == 'prose' else 'embedded'} model: {what}")
    page.table(["alpha_c = alpha_s"] + [f"chunk_n {n}" for n in chunks], [[a] + [cells.get((a, n), "-") for n in chunks] for a in alphas])


def chunks(page, kept):
    at = len(page.out)
    for model in MODELS:
        for size, rows in kept.methods(f"tokens-{model}").items():
            cells = cells_of(rows, lambda r: f"{number(r['kl'])} / {percent(r['prefill_density'])}% / {percent(r['prefill_cra'])}% / "
                                             f"{number(r['prefill_error'])}")
            chunk_table(page, cells, model, size, "KL / density / measured CRA / mean error of checked rows")
    for kind, model, title in QUESTIONS:
        for size, groups in kept.scores(kind).items():
            rows = [of_task["all"] for of_method in groups.values() for method, of_task in of_method.items() if method != "dense"]
            chunk_table(page, cells_of(rows, lambda r: f"{percent(r['score'])} / {percent(r['prefill_density'])}%"), model, size,
                        f"score in percent / density, {title}")
    if len(page.out) > at:
        page.out.insert(at, "## What more chunks change\n\n`chunk_n` divides a segment into chunks, each with samples and a choice of its own "
                            "(the shape of Table 3 of the SampleAttention paper).\n\n")



def scores(page, kept):
    for kind, model, title in QUESTIONS:
        for size, groups in kept.scores(kind).items():
            parts = kept.of(kind)[size]
            tasks = [row["task"] for row in parts[0]["result"]["rows"] if row["method"] == "dense"]
            if len(tasks) == 2:
                tasks = tasks[-1:]  # one task: "all" is the same
            page.say(f"## Answers at {size}: the {'prose' if model == 'prose' else 'embedded'} model, {title}")
            page.say("Share of right answers in percent, with its 95% interval, and the difference to dense prefill on the same questions.")
            rows, shown = [], set()
            for group, of_method in groups.items():
                for method, of_task in of_method.items():
                    last, name = of_task["all"], "dense" if method == "dense" else label(method)
                    if name in shown:
                        continue  # every group has the same dense answers
                    shown.add(name)
                    cells = [f"{percent(of_task[t]['score'])}" for t in tasks[:-1]]
                    gap = show(tuple(last[k] for k in ("difference", "difference_low", "difference_high")), 1, 100) if method != "dense" else "-"
                    rows.append((-1 if method == "dense" else FAMILIES.index(family(method)), last["prefill_density"] or 1,
                                 [name, percent(last["prefill_density"]) if method != "dense" else "100",
                                  *cells, show((last["score"], last["score_low"], last["score_high"]), 1, 100), gap, str(last["samples"])]))
            page.table(["method", "density %", *tasks[:-1], "all", "difference, points", "questions"], [row for *_, row in sorted(rows, key=lambda x: x[:2])])
            commands(page, parts)


def kernels(page, kept):
    part = kept.parts.get("kernels")
    if part:
        r = part["result"]
        page.say(f"## Kernels on {r['device']}")
        page.say("Attention of one layer in the shape of Llama-3.1-8B. `attention with a mask` visits random blocks of the density; `mask of` a method makes\n"
                 "its mask, without attention. The goals: time / (density x dense) at most 1.12 at 10% and at most 1.04 from 40% on; the mask of\n"
                 "`sample` at most 2.5% of dense at 32k (4.5% with 4 chunks) and 0.8% at 128k (1.3%).")
        page.table(["tokens", "what", "density %", "ms", "time / dense %", "time / (density x dense)"],
                   [[f"{row['tokens'] >> 10}k", row["what"], percent(row["density"]), f"{row['us'] / 1e3:.3f}", percent(row["of_dense"], 2),
                     "-" if row["of_work"] is None else f"{row['of_work']:.3f}"] for row in r["rows"]])
        commands(page, [part])
    dense = kept.parts.get("dense-kernel")
    if not dense and not kept.peers:
        return
    speeds = collections.defaultdict(dict)
    for row in dense["result"]["rows"] if dense else []:
        if row["phase"] == "prefill":
            speeds[row["size"]]["Sleigh"] = f"{row['tflop_s']:.0f}"
    for row in kept.peers:
        if row["test"] == "prefill":
            speeds[f"{row['n'] >> 10}k"][row["backend"]] = str(row["tflops"])
    names = [name for name in ("Sleigh", "fa3", "cudnn", "fa2") if any(name in row for row in speeds.values())]
    page.say("## Dense prefill and its peers")
    page.say("TFLOP/s of dense causal attention, the same shape. fa3: FlashAttention-3; fa2: FlashAttention-2; cudnn: cuDNN, both through PyTorch\n"
             "(`python3 scripts/measure/bench_peers.py prefill`).")
    page.table(["tokens", *names], [[size, *(speeds[size].get(name, "-") for name in names)] for size in sorted(speeds, key=tokens)])
    if dense:
        commands(page, [dense])


def report(kept, args):
    page = Page()
    begin(page, kept)
    summary(page, kept)
    kept_scores(page, kept)
    tuned(page, kept)
    first_token(page, kept)
    picture(page, kept, args)
    estimates(page, kept)
    densities(page, kept)
    chunks(page, kept)
    scores(page, kept)
    next_tokens(page, kept)
    kernels(page, kept)
    return "".join(page.out).rstrip() + "\n"


# ---- self-test ----

def invented(method, density, kl, kept=None, cra=None):
    of_heads = {key: [[x, x]] for key, x in (("density", density), ("kept", kept), ("cra", cra), ("error", kl))}
    row = {"method": method, "positions": 100, "top1": 0.9, "prefill_density": density, "prefill_kept": kept, "prefill_cra": cra, "prefill_error": kl,
           "prefill_error_max": 2 * kl, "ppl_answer_dense": 3.0, "heads": of_heads}
    for key, x in (("kl", kl), ("ln_ppl_ratio", 0.001)):
        row |= {key: x, f"{key}_low": 0.5 * x, f"{key}_high": 2 * x}
    return row


def invented_scores(*methods):
    out = []
    for method, score, density in methods:
        for task in ("qa-2hop", "fwe", "all"):
            out.append({"method": method, "task": task, "samples": 12, "score": score, "score_low": score - 0.1, "score_high": score, "difference": score - 1,
                        "difference_low": score - 1.1, "difference_high": score - 0.9, "prefill_density": density})
    return {"rows": out}


def tune_row(setting, density, score, result):
    return {"setting": setting, "n": 40, "x": score, "low": score - 0.1, "high": 1.0, "loss": 1 - score, "density": density, "work": density + 0.01,
            "prefill_ms": 12.5, "result": result}


def invented_parts():
    books = {"prompts": ["a", "b"], "n_prompt": [3800, 3900]}
    of_part = {
        "tokens-prose:8k:masks": {**books, "methods": [invented("sample:alpha_c=0.9:alpha_s=0.9", 0.5, 0.0005, 0.9, 0.7),
                                                       invented("sample:alpha_c=0.95", 0.6, 0.0004), invented("streaming:sink=4", 0.7, 0.02)]},
        "tokens-prose:8k:chunks": {**books, "methods": [invented("sample:alpha_c=0.9:alpha_s=0.9:chunk_n=4", 0.4, 0.0002, 0.8, 0.78)]},
        "score-tiny:4k:masks": invented_scores(("dense", 1, None), ("sample:alpha_c=0.95", 0.75, 0.6)),
        "score-tiny:4k:chunks": invented_scores(("dense", 1, None), ("sample:alpha_c=0.95:chunk_n=2", 1, 0.65)),
        "tune:4k": {"rows": [tune_row("dense", 1, 1.0, ""), tune_row("sample:alpha_c=0.4", 0.2, 0.98, "the loss is too large"),
                             tune_row("sample:alpha_c=0.5", 0.3, 0.995, "best so far"), tune_row("sample:alpha_c=0.5", 0.3, 0.995, "chosen")]},
        "tuned-facts:4k:tuned": invented_scores(("dense", 1, None), ("sample:alpha_c=0.5", 0.993, 0.29), ("sample:alpha_c=0.8", 0.97, 0.25)),
        "tokens-prose:8k:timed": {"prompts": ["c"], "n_prompt": [8000],
                                  "methods": [{**invented(method, density, kl), "ttft_ms": ms} for method, density, kl, ms in
                                              (("dense", None, 0.0, 20.0), ("sample:alpha_c=0.8:alpha_s=0.8", 0.13, 0.001, 9.0),
                                               ("sample:alpha_c=0.95", 0.3, 0.0005, 12.0), ("vertical-slash:columns=64:slashes=256", 0.4, 0.001, 15.0))]},
        "dense-prose": {"ms": {"7936": 20.0}},
        "ttft:8k:dense": {"method": "dense", "tokens": 7168, "ms": 10000, "density": 1.0},
        "ttft:8k:alpha-0.8": {"method": "streaming:window=9000", "tokens": 7168, "ms": 4200, "density": 0.13},
        "kernels": {"rows": [{"tokens": 32768, "what": "attention with a mask", "density": 0.1, "us": 1500, "of_dense": 0.11, "of_work": 1.1},
                             {"tokens": 32768, "what": "mask of sample", "density": None, "us": 300, "of_dense": 0.02, "of_work": None}]},
        "dense-kernel": {"rows": [{"phase": "prefill", "size": "32k", "tflop_s": 658.4}]},
    }
    return {name: {"part": name, "command": f"build/sleigh {name}", "date": "2026-01-01", "result": {"version": "0", "commit": "c", "device": "d", **r}}
            for name, r in of_part.items()}


def self_test():
    def write(folder, parts):
        for name, part in parts.items():
            with open(os.path.join(folder, name.replace(":", "-") + ".json"), "w") as f:
                json.dump(part, f)
        return report(Kept(folder), argparse.Namespace(picture=False, output="sparse-prefill.md"))

    parts = invented_parts()
    with tempfile.TemporaryDirectory() as folder:
        few = write(folder, {name: part for name, part in parts.items() if "kernel" not in name})
        with open(os.path.join(folder, "peers.jsonl"), "w") as f:
            f.write('{"test": "prefill", "n": 32768, "backend": "fa3", "tflops": 680}\n')
        with open(os.path.join(folder, "notes.md"), "w") as f:
            f.write("What people write.\n")
        text = write(folder, parts)
    for line in ("Kernels", "FlashAttention", "What people write."):
        if line in few:
            sys.exit(f"sparse_prefill_report: self-test: {line!r} stands in a page without its part")
    for line in ("What people write.",
                 "| `sample` | 8k | - | 40.0% (sample 0.9, 0.9, 4 chunks) | 40.0% (sample 0.9, 0.9, 4 chunks) |",
                 "| `streaming` | 8k | - | - | - |",
                 "| needles, two-hop questions and frequent words | 4k | `sample` | 12 | 65.0% (sample 0.95, 0.95, 2 chunks) |",
                 "Its choice is **sample 0.5, 0.95**: 30.0% of the blocks, a loss of\n0.5 points. On 12 other questions",
                 "it visits 29.0% of the blocks, and the\ndifference to dense prefill is -0.7 (-10.7 to 9.3) points.",
                 "\nsample 0.5, 0.95 has the least density of those that lose at most one point: 29.0%.",
                 "| sample 0.4, 0.95 | 20.0 | 21.0 | 40 | 98.0 | 2.0 | 12.5 | the loss is too large |",
                 "| 8k | sample 0.8, 0.8 | 13.0 | 0.001 (0.0005 to 0.002) | - | 9.0 | 0.45 | 4.20 | 0.42 |",
                 "| the prose model | 8k | 0 | 60.0, 60.0 |",
                 "| streaming, window 2044 | 70.0 | ",
                 "| sample 0.9, 0.9 | 50.0 | 0.0005 (0.00025 to 0.001) | 0.001 (0.0005 to 0.002) | 90.0 | 70.0 | 0.0005 | 0.001 |",
                 "| prose | 8k | sample 0.9, 0.9 | 50.0 | 90.0 | 70.0 | 90.0 | 70.0 | 2 of 2 | 20.0 |",
                 "| prose | 8k | sample 0.9, 0.9, 4 chunks | 40.0 | 80.0 | 78.0 | 80.0 | 78.0 | 0 of 2 | 2.0 |",
                 "| 0.9 | 0.0005 / 50.0% / 70.0% / 0.0005 | 0.0002 / 40.0% / 78.0% / 0.0002 |",
                 "| 0.95 | 75.0 / 60.0% | 100.0 / 65.0% |",
                 "| dense | 100 | 100.0 | 100.0 | 100.0 (90.0 to 100.0) | - | 12 |",
                 "| sample 0.95, 0.95 | 60.0 | 75.0 | 75.0 | 75.0 (65.0 to 75.0) | -25.0 (-35.0 to -15.0) | 12 |",
                 "| 32k | attention with a mask | 10.0 | 1.500 | 11.00 | 1.100 |",
                 "| 32k | mask of sample | - | 0.300 | 2.00 | - |",
                 "| 32k | 658 | 680 |"):
        if line not in text:
            sys.exit(f"sparse_prefill_report: self-test: expected {line!r} in\n{text}")


if __name__ == "__main__":
    run_report(__doc__, "sparse-prefill", "sparse_prefill.py", Kept, report, self_test)
