#!/usr/bin/env python3
"""Measures what tables of the four papers show and no other page of results/ does. scripts/measure/papers.py puts the figures beside the papers'.

    python3 scripts/measure/paper_tables.py --device cuda      # two minutes of a GPU
    python3 scripts/measure/paper_tables.py report             # writes results/paper-tables.md from the figures that are kept

Parts:
    questions    every task of `sleigh eval` at 32k tokens with 10% of the rows: vAttention, Tables 4 and 5 (the embedded model)
    books:KIND   questions about facts in books, KIND needle or two-hop, with 10% of the rows: vAttention, Tables 6 and 8 (the prose model)
    density      tasks at 32k tokens by the share of the rows: vAttention, Table 12 (the embedded model)
    layers       error and rows of each layer by bound and epsilon: vAttention, Figures 1 and 13 to 16 (the prose model)
    window       windows of saap: SAAP, Figure 8 (the embedded model)
    both         a sparse prefill and a sampled decode together (the embedded model)

The inputs of `books` and `layers` are those of `scripts/measure/prose_results.py --part inputs --samples 16`. Each part writes one JSON to
--results (measured_parts.py)."""
import argparse
import json
import os
import sys

from measured_parts import Part, add_options, of_document, parsed, place_flags, run_chosen
from short_questions import percent

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from sleigh_runs import head_of_parts

RULER = "niah-single,niah-multikey,niah-multivalue,niah-multiquery,vt,fwe,qa-1hop,qa-2hop"
FEW_TASKS = "niah-multikey,vt,qa-2hop"
# A tenth of 32,768 rows, in units of 16 (quest).
TENTH = ["dense", "vattention:epsilon=0.2:delta=0.2:top=0.05:base=0.025", "topk:k=3264", "vattention:epsilon=0.2:delta=0.2:top=0.05:base=0.025:predictor=int4",
         "vattention:epsilon=0.2:delta=0.2:top=0.05:base=0.025:predictor=quest", "quest:tokens=3264"]
DENSITY = ["dense", "topk:k={656,1632,3264,6544}", "quest:tokens={656,1632,3264,6544}",
           *(f"vattention:epsilon=0.2:delta=0.2:top={top}:base={base}:predictor={{oracle,quest}}" for top, base in ((0.01, 0.005), (0.025, 0.01), (0.05, 0.025), (0.1, 0.05)))]
LAYERS = ["vattention:verify={denominator,numerator}:epsilon=0.1:delta=0.2:top=0.05:base=0.02:bound={clt,hoeffding}",
          "vattention:verify=denominator:epsilon={0.025,0.05,0.1,0.2,0.4}:delta=0.2:top=0.01:base=0.005:sink=16:window=16"]
WINDOWS = ["dense", "saap:l=2:window={255,511,1023,2047,4095}", "saap:l=8:window={255,511,1023,2047,4095}"]
PREFILLS = "dense,sample:alpha_c=0.5:alpha_s=0.5,sample:alpha_c=0.8:alpha_s=0.8"
DECODES = "dense,santa-prop:S=128,santa-pps:S=128:budget=even,santa-is:S=256,quest:tokens=1024"
OF_ROW = ("task", "attn", "attn_prefill", "samples", "score", "score_low", "score_high", "difference", "difference_low", "difference_high", "better", "worse",
          "kv_bytes_share", "prefill_density", "ttft_ms")


# ---- measuring ----

def keep_rows(doc):
    return of_document(doc, device=doc["settings"].get("arithmetic"), rows=[{k: row[k] for k in OF_ROW if k in row} for row in doc["rows"]])


def keep_layers(doc):
    """Of each method the rows of V that a query head reads, as a share of all rows, and the error, of each layer."""
    n_rows = doc["methods"][0]["k_rows"]
    return of_document(doc, n_prompt=[p["n_prompt"] for p in doc["prompts"]],
                       methods=[{"attn": m["attn"], "kl": m["kl"], "layers": [{"density": layer["v_rows"] / n_rows, "l2": layer["l2"]} for layer in m["layers"]]}
                                for m in doc["methods"]])


def all_parts(args):
    parts = {}

    def add(name, keep, command, model, source, *flags):
        words = [args.sleigh, command, "-m", model, *(("--jsonl", source) if source else ()), *flags, *place_flags(args), "-o", "json"]
        parts[name] = Part(name, words, source, model, keep)

    def asked(name, model, source, methods, *flags):
        add(name, keep_rows, "eval", model, source, *flags, "--exact-below", "off", "--attn", ",".join(methods))

    asked("questions", "models/tiny", None, TENTH, "--task", RULER, "--length", "32k", "--samples", "8")
    for kind in ("needle", "two-hop"):
        asked(f"books:{kind}", "models/prose", args.input(f"{kind}-32k"), TENTH, "-n", "32", "-e", "--stop", "\\n")
    asked("density", "models/tiny", None, DENSITY, "--task", FEW_TASKS, "--length", "32k", "--samples", "8")
    asked("both", "models/tiny", None, [DECODES], "--task", FEW_TASKS, "--length", "32k", "--samples", "16", "--attn-prefill", PREFILLS)
    asked("window", "models/tiny", None, WINDOWS, "-c", "32k", "--task", FEW_TASKS, "--length", "32k", "--samples", "12")
    add("layers", keep_layers, "compare", "models/prose", args.input("books-8k"), "--no-texts", "--exact-below", "off", "--attn", ",".join(LAYERS))
    return parts


def measure(words):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(p, "build/prose-work", "results/paper-tables")
    a = parsed(p, words)
    os.makedirs(a.work, exist_ok=True)
    run_chosen(a, all_parts(a))


# ---- the page ----

def table(head, rows):
    return "\n".join(["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *("| " + " | ".join(row) + " |" for row in rows)])


def by_task(part, *others):
    """A row for each method: its score of each task, of all with the interval, and the difference to dense attention. others: fields before the tasks."""
    rows = part["result"]["rows"]
    tasks = list(dict.fromkeys(row["task"] for row in rows if row["task"] != "all"))
    body = []
    for last in (row for row in rows if row["task"] == "all"):
        key = (last["attn"], last.get("attn_prefill"))
        of_task = {row["task"]: row for row in rows if (row["attn"], row.get("attn_prefill")) == key}
        body.append([f"`{last['attn']}`", *("-" if last[k] is None else f"{100 * last[k]:.1f}" if k != "attn_prefill" else f"`{last[k]}`" for k in others),
                     f"{100 * last['kv_bytes_share']:.1f}", *(f"{100 * of_task[t]['score']:.1f}" for t in tasks if len(tasks) > 1), percent(last, "score"),
                     "-" if last["difference_low"] == last["difference_high"] == 0 else percent(last, "difference", "+"), str(last["samples"])])
    names = {"attn_prefill": "prefill", "prefill_density": "density of the prefill %"}
    return table(["method", *(names[k] for k in others), "KV bytes %", *(tasks if len(tasks) > 1 else ()), "all", "difference to dense, points", "questions"], body)


def by_layer(part):
    body = []
    for m in part["result"]["methods"]:
        for i, layer in enumerate(m["layers"]):
            body.append([f"`{m['attn']}`", str(i), f"{100 * layer['density']:.1f}", f"{layer['l2']:.4f}"])
        means = [sum(layer[k] for layer in m["layers"]) / len(m["layers"]) for k in ("density", "l2")]
        body.append([f"`{m['attn']}`", "all", f"{100 * means[0]:.1f}", f"{means[1]:.4f}"])
    return table(["method", "layer", "rows %", "error"], body)


SECTIONS = (("questions", "Every task at 32k tokens with 10% of the rows", by_task), ("books:needle", "Needles in books of 32k tokens with 10% of the rows", by_task),
            ("books:two-hop", "Two-hop questions in books of 32k tokens with 10% of the rows", by_task), ("density", "Answers at 32k tokens by density", by_task),
            ("layers", "Bounds of vattention by layer", by_layer), ("window", "Windows of saap", by_task),
            ("both", "A sparse prefill and a sampled decode together", lambda part: by_task(part, "attn_prefill", "prefill_density")))
MODELS = {"models/tiny": "The embedded model", "models/prose": "The prose model"}


def model_of(part):
    words = part["command"].split()
    return MODELS[words[words.index("-m") + 1]]


def answer(parts):
    rows = {row["attn"]: row for row in parts["questions"]["result"]["rows"] if row["task"] == "all"}
    names = ("dense", TENTH[1].replace(":top=0.05", ""), TENTH[2], TENTH[5])
    found = ", ".join(f"{percent(rows[name], 'score').split()[0]}% (`{name}`)" for name in names)
    return f"With a tenth of the rows at 32k tokens, the embedded model answers {found} of {rows['dense']['samples']} questions."


def report(words):
    p = argparse.ArgumentParser(prog="paper_tables.py report")
    p.add_argument("--results", default="results/paper-tables")
    p.add_argument("-o", "--output", default="results/paper-tables.md")
    a = p.parse_args(words)
    parts = {}
    for name, _, _ in SECTIONS:
        with open(os.path.join(a.results, name.replace(":", "-") + ".json"), encoding="utf-8") as f:
            parts[name] = json.load(f)
    with open(os.path.join(a.results, "notes.md"), encoding="utf-8") as f:
        notes = f.read().strip() + "\n\nPeople wrote this section ([notes.md](paper-tables/notes.md)); the script wrote the rest of the page."
    devices = sorted({part["result"]["device"].removeprefix("cuda: ").split(",")[0] for part in parts.values()})
    out = ["# Tables of the papers on small models",
           head_of_parts(list(parts.values()), "What do the tables of the papers that no other page repeats show on our small models?", answer(parts), "paper_tables.py"),
           f"[papers.md](papers.md) puts these figures beside the papers'. Measured on: {', '.join(devices)}. Answers have 95% intervals; those of differences\n"
           "are paired, on the same questions. That of several tasks combines the intervals of the tasks. A task in which no answer differs from\n"
           "that of dense attention has an interval from the number of its questions alone, so equal answers have the widest interval: it is a bound, and\n"
           "no spread. With `--exact-below off` every step chooses rows. Rows are those of V that a query head reads.", notes]
    for name, title, of_part in SECTIONS:
        out += [f"## {title}", f"{model_of(parts[name])}.", f"    {parts[name]['command']}", of_part(parts[name])]
    with open(a.output, "w", encoding="utf-8") as f:
        f.write("\n\n".join(out) + "\n")


if __name__ == "__main__":
    report(sys.argv[2:]) if sys.argv[1:2] == ["report"] else measure(None)
